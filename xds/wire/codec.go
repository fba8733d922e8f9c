package wire

import (
	"slices"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// EncodedMessage is a message that is encoded already. Nobody may change the bytes
// afterwards: the transport refers to them until they are sent, which may take long if the
// peer does not read.
type EncodedMessage interface {
	// AppendBuffers appends the buffers of the encoding, in order.
	AppendBuffers(dst [][]byte) [][]byte
}

// TrackedMessage is an [EncodedMessage] that is told about its progress.
type TrackedMessage interface {
	EncodedMessage
	// Written is called when the last byte was handed to the connection, or the stream has
	// ended, but not if the connection broke. It must not block: the transport's goroutine
	// calls it.
	Written()
	// Progress is called for every 64 KiB before that, under the same conditions: sending
	// a large message may take long.
	Progress()
}

// RawMessage is a message that is decoded later: when many arrive at once, the encoding
// takes less memory.
type RawMessage interface {
	// SetRaw receives the encoding.
	SetRaw(frame Frame)
}

// Frame is an encoded message, in the buffers into which the transport has read it.
type Frame struct{ buffers mem.BufferSlice }

// Len is the size of the message, in bytes.
func (f Frame) Len() int { return f.buffers.Len() }

// Buffers are the bytes of the message, which nobody may change.
func (f Frame) Buffers() [][]byte {
	out := make([][]byte, len(f.buffers))
	for i, b := range f.buffers {
		out[i] = b.ReadOnlyData()
	}
	return out
}

// Free lets the transport use the buffers again: nobody may refer to them from then on.
// Without it they are garbage in the end.
func (f Frame) Free() { f.buffers.Free() }

// NewFrame is a message in one buffer.
func NewFrame(b []byte) Frame { return Frame{mem.BufferSlice{mem.SliceBuffer(b)}} }

// minBuffer is the size of buffers, on average, below which a message is copied into one:
// a peer may send a few bytes at a time, and each such buffer takes 256 bytes or more.
const minBuffer = 1 << 10

// writtenSignal is the pool of an empty buffer behind a message: gRPC frees the buffer
// when the message is written, and Put reports that.
type writtenSignal struct{ message TrackedMessage }

// Get implements [mem.BufferPool]; it is not called.
func (writtenSignal) Get(length int) *[]byte { return mem.DefaultBufferPool().Get(length) }

// Put implements [mem.BufferPool].
func (e writtenSignal) Put(*[]byte) { e.message.Written() }

// progressSignal is writtenSignal for the middle of a message.
type progressSignal struct{ writtenSignal }

// Put implements [mem.BufferPool].
func (m progressSignal) Put(*[]byte) { m.message.Progress() }

// progressStep is how many bytes of a message are between two progress signals.
const progressStep = 64 << 10

// pooledSize is the capacity from which gRPC counts references to a buffer.
const pooledSize = 2 << 10

// Codec hands the buffers of an [EncodedMessage] to the transport without a copy, leaves a
// [RawMessage] encoded, and handles all other messages as gRPC's codec for protocol
// buffers does. It has that codec's name: peers cannot tell them apart.
func Codec() encoding.CodecV2 {
	nothing := make([]byte, 0, pooledSize)
	return codec{encoding.GetCodecV2(proto.Name), &nothing}
}

type codec struct {
	encoding.CodecV2
	empty *[]byte // behind every message; nobody writes to it
}

// Marshal implements [encoding.CodecV2].
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	p, ok := v.(EncodedMessage)
	if !ok {
		return c.CodecV2.Marshal(v) //nolint:wrapcheck // it is gRPC's own, and gRPC wraps it
	}
	list := slices.DeleteFunc(p.AppendBuffers(nil), func(p []byte) bool { return len(p) == 0 })
	if f, ok := v.(TrackedMessage); ok {
		return c.track(list, f), nil
	}
	out := make(mem.BufferSlice, len(list))
	for i := range list {
		// A pointer into the list saves one allocation a buffer.
		out[i] = (*mem.SliceBuffer)(&list[i])
	}
	return out, nil
}

// track inserts progress signals every progressStep bytes, splitting buffers where needed,
// and the written signal at the end.
func (c codec) track(list [][]byte, f TrackedMessage) mem.BufferSlice {
	size := 0
	for _, p := range list {
		size += len(p)
	}
	out := make(mem.BufferSlice, 0, len(list)+2*(size/progressStep)+1)
	var between mem.BufferPool = progressSignal{writtenSignal{f}}
	room := progressStep // before the next signal
	for i := range list {
		for len(list[i]) > room {
			if room > 0 {
				out = append(out, mem.SliceBuffer(list[i][:room]))
			}
			out = append(out, mem.NewBuffer(c.empty, between))
			list[i], room = list[i][room:], progressStep
		}
		room -= len(list[i])
		out = append(out, (*mem.SliceBuffer)(&list[i]))
	}
	return append(out, mem.NewBuffer(c.empty, writtenSignal{f}))
}

// Unmarshal implements [encoding.CodecV2].
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if k, ok := v.(RawMessage); ok {
		if len(data) > 1 && data.Len()/len(data) < minBuffer {
			k.SetRaw(NewFrame(data.Materialize()))
			return nil
		}
		data.Ref()
		k.SetRaw(Frame{data})
		return nil
	}
	return c.CodecV2.Unmarshal(data, v) //nolint:wrapcheck // it is gRPC's own, and gRPC wraps it
}
