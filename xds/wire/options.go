package wire

import "google.golang.org/grpc"

// Flow control windows: what a peer may send before we read. They are static, so that a
// peer cannot make them grow, and gRPC does not measure the connection by pings, which
// would be a third of the cost of a small push.
const (
	streamWindow     = 64 << 10
	connectionWindow = 256 << 10
)

// ServerOptions are the codec and the transport's options for a server with thousands of
// streams, one a connection. docs/adr/0014-transport.md has the measurements. Write
// buffers are gRPC's own: 32 KiB, held only while something is being written.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec()),
		// An idle stream has nothing to read, but would hold its read buffer. The price is
		// two reads instead of one for a request.
		grpc.ReadBufferSize(0),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connectionWindow),
	}
}
