// Package stream is the protocol core of incremental xDS, both halves: what a
// server sends and when, and what a client names, accepts and refuses.
//
// It does no I/O, starts no goroutine and reads no clock; bodies are opaque
// bytes and versions pass through unchanged. It knows nothing of a mesh.
package stream
