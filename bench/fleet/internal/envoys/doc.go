// Package envoys is a fleet of proxies that are not there: each opens a delta
// ADS stream and behaves on it as an Envoy does, and thousands of them together
// cost less than the server they are to measure.
//
// What is on the wire is read by hand. A resource is decoded once, when its
// bytes are seen for the first time by any of the streams; a stream holds four
// bytes a name: which of the known resources it has.
//
// Every connection has one goroutine, which owns the state of its streams; what
// the streams share is behind locks. A Fleet's methods may be called from
// anywhere.
package envoys
