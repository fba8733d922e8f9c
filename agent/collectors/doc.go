// Package collectors finds what the collectors of a host's spans and logs do not take. Envoy bounds
// what waits for a collector, drops the rest and counts it; a [Watch] reads these counts, adds them up
// over Envoys, and says which collector is the cause.
//
// It sends nothing to collectors, and changes nothing in Envoy.
//
// New starts nothing. Run reads until its context ends, in its caller's goroutine. Status may be used
// by any goroutine.
package collectors
