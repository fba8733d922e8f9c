package wire

import (
	"slices"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Pieces is a message whose encoding exists already. Nobody may change the bytes
// afterwards: the transport refers to them until they are on the wire, which for a
// peer that does not read may be for long.
type Pieces interface {
	// AppendBuffers appends the pieces of which the encoding consists, in order.
	AppendBuffers(dst [][]byte) [][]byte
}

// Followed is a [Pieces] that hears when the transport has done with it.
type Followed interface {
	Pieces
	// Written is called when the last byte has been handed to the connection, or the
	// stream has ended; not where the connection broke. It must not block: the transport's own goroutine calls it.
	Written()
}

// Kept is a message that is decoded later: where many come at once the encoding
// is the smaller of the two.
type Kept interface {
	// Keep gives it its encoding, which is its own from now on.
	Keep(frame []byte)
}

// end is a buffer of no bytes that tells a message when it is freed, as the last
// of its buffers.
type end struct{ message Followed }

// Get implements [mem.BufferPool]; nobody asks.
func (end) Get(length int) *[]byte { return mem.DefaultBufferPool().Get(length) }

// Put implements [mem.BufferPool].
func (e end) Put(*[]byte) { e.message.Written() }

// pooled is the room from which on gRPC counts who refers to a buffer.
const pooled = 2 << 10

// Codec gives the transport the pieces of a [Pieces] without a copy, leaves a
// [Kept] encoded, and encodes and decodes everything else as the codec does that gRPC has for protocol
// buffers. It bears that one's name: peers cannot tell them apart.
func Codec() encoding.CodecV2 {
	nothing := make([]byte, 0, pooled)
	return codec{encoding.GetCodecV2(proto.Name), &nothing}
}

type codec struct {
	encoding.CodecV2
	nothing *[]byte // of the end of every message; nobody writes to it
}

// Marshal implements [encoding.CodecV2].
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	p, ok := v.(Pieces)
	if !ok {
		return c.CodecV2.Marshal(v) //nolint:wrapcheck // it is gRPC's own, and gRPC wraps it
	}
	list := slices.DeleteFunc(p.AppendBuffers(nil), func(p []byte) bool { return len(p) == 0 })
	out := make(mem.BufferSlice, len(list), len(list)+1)
	for i := range list {
		// By pointer into the list, which saves an allocation a piece.
		out[i] = (*mem.SliceBuffer)(&list[i])
	}
	if f, ok := v.(Followed); ok {
		out = append(out, mem.NewBuffer(c.nothing, end{f}))
	}
	return out, nil
}

// Unmarshal implements [encoding.CodecV2].
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if k, ok := v.(Kept); ok {
		k.Keep(data.Materialize())
		return nil
	}
	return c.CodecV2.Unmarshal(data, v) //nolint:wrapcheck // it is gRPC's own, and gRPC wraps it
}
