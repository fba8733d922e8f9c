package accept

import (
	"net"

	"golang.org/x/net/http2"
)

// maxFrames is how many frames of HTTP/2 an unauthenticated peer may send. A call
// takes some eight, with the settings, the windows and the pings around it, and a
// connection that is not authenticated makes few calls.
const maxFrames = 128

// frameHeader is the length of what each frame begins with, the first three bytes
// being the length of the rest.
const frameHeader = 9

// framed is what an unauthenticated peer sends after its handshake. It counts
// frames: the server keeps a hundred bytes and more for a frame of ten, or a stream
// for the headers of one, so that the count of bytes does not bound what they cost.
type framed struct {
	net.Conn
	of *conn

	// Owned by whoever reads, one at a time.
	headers headers
	count   int // frames
}

func newFramed(c net.Conn, of *conn) *framed {
	return &framed{Conn: c, of: of, headers: headers{size: frameHeader, body: len(http2.ClientPreface)}}
}

// Read implements [net.Conn].
func (f *framed) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	if f.read(b[:n]); f.count > maxFrames {
		f.of.in.drop(f.of, reasonBytes)
		return 0, errTooMuch
	}
	return n, err //nolint:wrapcheck // it is the connection's
}

// read counts the frames whose headers end in b.
func (f *framed) read(b []byte) {
	for {
		var header []byte
		if header, b = f.headers.next(b); header == nil {
			return
		}
		f.headers.body = int(header[0])<<16 | int(header[1])<<8 | int(header[2])
		f.count++
	}
}
