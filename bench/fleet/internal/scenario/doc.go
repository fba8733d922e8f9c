// Package scenario runs measurements: servers and fleets, each a process of its own, the
// changes that are made while they run, and their use of CPU and memory.
//
// A fleet's process is this same program. It reads commands as lines of JSON on its standard
// input, and answers on its standard output. The only goroutines wait for a process.
package scenario
