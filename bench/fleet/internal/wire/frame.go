package wire

import (
	"encoding/binary"
	"fmt"
	"sync"
)

// Frame types and flags of HTTP/2 (RFC 9113, section 6).
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameRST          = 0x3
	frameSettings     = 0x4
	framePing         = 0x6
	frameGoAway       = 0x7
	frameWindowUpdate = 0x8
	frameContinuation = 0x9

	flagEndStream  = 0x1
	flagACK        = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20

	settingInitialWindow = 0x4

	headerLength   = 9
	prefixLength   = 5 // of a gRPC message: compressed or not, length
	maxFrame       = 16384
	defaultWindow  = 65535
	maxControl     = 64 << 10
	largestMessage = 256 << 20
)

// The windows are those of Envoy: 16 MiB a stream, 24 MiB a connection.
const (
	streamWindow = 16 << 20
	connWindow   = 24 << 20
)

func appendFrame(b []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	n := len(payload)
	b = append(b, byte(n>>16), byte(n>>8), byte(n), kind, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, payload...)
}

func appendWindowUpdate(b []byte, stream uint32, n int) []byte {
	return appendFrame(b, frameWindowUpdate, 0, stream, binary.BigEndian.AppendUint32(nil, uint32(n)))
}

// frame is where the reader is: in a header, or in a payload.
type frame struct {
	header [headerLength]byte
	have   int // bytes of the header
	kind   byte
	flags  byte
	stream uint32
	left   int // bytes of the payload that have not come
}

// between reports whether a frame has ended and no other has begun.
func (f *frame) between() bool { return f.have == 0 }

// begin takes bytes of the header, and reports whether it is whole.
func (f *frame) begin(data []byte) (rest []byte, whole bool) {
	n := copy(f.header[f.have:], data)
	f.have += n
	if f.have < headerLength {
		return data[n:], false
	}
	h := f.header[:]
	f.left = int(h[0])<<16 | int(h[1])<<8 | int(h[2])
	f.kind, f.flags = h[3], h[4]
	f.stream = binary.BigEndian.Uint32(h[5:]) & 0x7fffffff
	return data[n:], true
}

// assembly puts one gRPC message together.
type assembly struct {
	prefix [prefixLength]byte
	have   int // bytes of the prefix
	want   int // length of the message
	buf    *[]byte
}

// feed takes the payload of a DATA frame and calls deliver for each message that
// is whole; what deliver gets is valid until it returns.
func (a *assembly) feed(data []byte, deliver func(msg []byte)) error {
	for len(data) > 0 {
		if a.have < prefixLength {
			n := copy(a.prefix[a.have:], data)
			a.have += n
			data = data[n:]
			if a.have < prefixLength {
				return nil
			}
			a.want = int(binary.BigEndian.Uint32(a.prefix[1:]))
			if a.prefix[0] != 0 || a.want > largestMessage {
				return fmt.Errorf("reading a message: it is compressed or of %d bytes", a.want)
			}
		}
		if a.buf == nil && len(data) >= a.want {
			deliver(data[:a.want])
			data = data[a.want:]
			a.have = 0
			continue
		}
		if a.buf == nil {
			a.buf = getBuffer(a.want)
		}
		n := min(a.want-len(*a.buf), len(data))
		*a.buf = append(*a.buf, data[:n]...)
		data = data[n:]
		if len(*a.buf) == a.want {
			deliver(*a.buf)
			putBuffer(a.buf)
			a.buf, a.have = nil, 0
		}
	}
	// A message of no bytes has no payload that would come later.
	if a.have == prefixLength && a.want == 0 {
		deliver(nil)
		a.have = 0
	}
	return nil
}

func (a *assembly) between() bool { return a.have == 0 }

// readSize is how much is read at once while a message is on its way.
const readSize = 256 << 10

var (
	readBuffers    = sync.Pool{New: func() any { b := make([]byte, readSize); return &b }} //nolint:gochecknoglobals // buffers of all connections
	messageBuffers = sync.Pool{New: func() any { return new([]byte) }}                     //nolint:gochecknoglobals // the same
)

func getBuffer(n int) *[]byte {
	b, _ := messageBuffers.Get().(*[]byte)
	if cap(*b) < n {
		*b = make([]byte, 0, n+n/4)
	}
	*b = (*b)[:0]
	return b
}

func putBuffer(b *[]byte) { messageBuffers.Put(b) }
