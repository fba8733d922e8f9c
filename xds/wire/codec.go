package wire

import (
	"slices"
	"strings"

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
	// Progress is called for every 64 KiB before that, under the same terms: a large
	// message may be long on its way.
	Progress()
}

// Kept is a message that is decoded later: where many come at once the encoding
// is the smaller of the two.
type Kept interface {
	// Keep gives it its encoding.
	Keep(frame string)
}

// end is a buffer of no bytes that tells a message when it is freed, as the last
// of its buffers.
type end struct{ message Followed }

// Get implements [mem.BufferPool]; nobody asks.
func (end) Get(length int) *[]byte { return mem.DefaultBufferPool().Get(length) }

// Put implements [mem.BufferPool].
func (e end) Put(*[]byte) { e.message.Written() }

// mark is end for the middle of a message.
type mark struct{ end }

// Put implements [mem.BufferPool].
func (m mark) Put(*[]byte) { m.message.Progress() }

// step is how much of a message lies between two marks, in bytes.
const step = 64 << 10

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
	if f, ok := v.(Followed); ok {
		return c.follow(list, f), nil
	}
	out := make(mem.BufferSlice, len(list))
	for i := range list {
		// By pointer into the list, which saves an allocation a piece.
		out[i] = (*mem.SliceBuffer)(&list[i])
	}
	return out, nil
}

// follow puts marks between the pieces, which it cuts where they are larger than
// a step, and the end behind them.
func (c codec) follow(list [][]byte, f Followed) mem.BufferSlice {
	size := 0
	for _, p := range list {
		size += len(p)
	}
	out := make(mem.BufferSlice, 0, len(list)+2*(size/step)+1)
	var between mem.BufferPool = mark{end{f}}
	room := step // before the next mark
	for i := range list {
		for len(list[i]) > room {
			if room > 0 {
				out = append(out, mem.SliceBuffer(list[i][:room]))
			}
			out = append(out, mem.NewBuffer(c.nothing, between))
			list[i], room = list[i][room:], step
		}
		room -= len(list[i])
		out = append(out, (*mem.SliceBuffer)(&list[i]))
	}
	return append(out, mem.NewBuffer(c.nothing, end{f}))
}

// Unmarshal implements [encoding.CodecV2].
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if k, ok := v.(Kept); ok {
		var text strings.Builder // which, unlike bytes, nobody fills with nought first
		text.Grow(data.Len())
		for _, b := range data {
			_, _ = text.Write(b.ReadOnlyData())
		}
		k.Keep(text.String())
		return nil
	}
	return c.CodecV2.Unmarshal(data, v) //nolint:wrapcheck // it is gRPC's own, and gRPC wraps it
}
