// Package sourcetest is the contract of [registry.Source] as a test that every
// source runs: what a registry relies on, whatever is read.
//
// A source's own test says how to get at the place that it reads, and calls
// [Run]. Each rule has a place of its own; nothing is shared, and the rules run
// beside one another. Goroutines are watched by profiler label, so that a rule
// judges those of its own source alone.
//
// A [Recorder] is for a source's own tests: it runs the source, and has what was
// sent and logged.
package sourcetest
