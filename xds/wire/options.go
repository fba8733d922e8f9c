package wire

import "google.golang.org/grpc"

// What a peer may send before it has to wait for us to read. Static, so that
// nothing that a peer does makes it more, and gRPC need not measure the way by
// pings: those are a third of what a small push costs.
const (
	streamWindow     = 64 << 10
	connectionWindow = 256 << 10
)

// ServerOptions are the codec and the transport's options for a server with
// thousands of streams, a connection each. docs/adr/0014-transport.md has the
// figures. Write buffers are gRPC's own: 32 KiB, held only while something is
// being written.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec()),
		// A stream that rests has nothing to read, and would hold its buffer all the
		// same; a request costs two reads instead of one.
		grpc.ReadBufferSize(0),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connectionWindow),
	}
}
