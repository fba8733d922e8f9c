// Package wire is how bytes that are made already leave by gRPC: a codec that
// hands them to the transport as they are ([Codec]), and the transport's options
// for thousands of streams that mostly rest ([ServerOptions]).
//
// It knows neither discovery nor a mesh: what is sent by reference says so itself
// ([Pieces]), and all else is encoded as protocol buffers. It has no state and no
// goroutine.
package wire
