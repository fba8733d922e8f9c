// Package wire sends bytes that are encoded already over gRPC. It has a codec that hands
// them to the transport without a copy ([Codec]), and the transport's options for
// thousands of streams that are mostly idle ([ServerOptions]).
//
// It knows neither xDS nor a mesh: messages that are encoded already implement
// [EncodedMessage]; all others are encoded as protocol buffers. It has no state and no
// goroutine.
package wire
