// Package wire is a gRPC client for thousands of streams in one process: HTTP/2
// as far as one bidirectional call needs it, one goroutine a connection, no
// buffer while nothing comes. A general client spends more on a byte than the
// servers that are to be measured with it.
//
// A connection is dialled, its streams are opened, and Run reads until it ends;
// whatever comes is handed to the stream's Handler on Run's goroutine.
package wire
