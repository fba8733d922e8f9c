package accept

import (
	"container/list"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

// stage is how far a connection has come.
type stage int

const (
	handshaking stage = iota
	unauthenticated
	authenticated
	stages
)

// The pools of unauthenticated connections.
const (
	waitingPool = iota // the handshake has not begun
	begunPool          // it has
	callPool           // it is over
	pools
)

func (s stage) String() string {
	return [...]string{"handshake", "unauthenticated", "authenticated"}[s]
}

// conn is a connection that is counted until it is closed.
type conn struct {
	net.Conn

	// Constant.
	in    *Acceptor
	at    string // the remote address
	group string // what it is counted by while it is not authenticated
	began time.Time

	// Owned by the goroutine of the handshake, and then constant.
	secure net.Conn             // or nil
	info   credentials.AuthInfo // or nil

	// Atomic. left is how many bytes may be read; negative means any number.
	left atomic.Int64
	// wrote is when something was written last, in Unix nanoseconds.
	wrote atomic.Int64

	// Owned by whoever reads, one at a time.
	first []byte  // what was read already
	hello headers // of its records
	// begun: the handshake has had its turn, and goes on. computes: it is counted
	// as one that computes now. After the handshake both are false.
	begun, computes bool

	// Guarded by the Acceptor's mu.
	stage  stage
	pool   *pool         // or nil
	place  *list.Element // in its pool
	who    string        // its identity, if authenticated
	closed bool
	ended  func() // or nil
	gate   *Gate  // or nil
	expiry *time.Timer
	until  time.Time // when it ends, while it is not authenticated
	// late is for how many things it waits that are the server's to do. Meanwhile
	// owed is how long the peer had left when the first of them began; spare is how
	// long the server has left for what it does then.
	late        int
	owed, spare time.Duration

	gone chan struct{} // closed when it is closed
}

var errTooMuch = errors.New("an unauthenticated connection has sent more than it may")

// recordHeader is how a record of TLS begins: its type, a version, and how long it is.
const (
	recordHeader    = 5
	recordAlert     = 21
	recordHandshake = 22
)

// fits reports whether the records whose headers end in b may be those of a ClientHello:
// memory is taken for what the header of each says. Of all types but two no more than the
// header is read.
func (c *conn) fits(b []byte) bool {
	for {
		var header []byte
		if header, b = c.hello.next(b); header == nil {
			return true
		}
		c.hello.body = int(binary.BigEndian.Uint16(header[3:]))
		if t := header[0]; (t == recordHandshake || t == recordAlert) && c.hello.body > helloBytes-recordHeader {
			return false
		}
	}
}

// awaitFirst waits for the header of the first record: a peer that never sends one
// costs nothing but this.
func (c *conn) awaitFirst() error {
	b := make([]byte, recordHeader)
	if _, err := io.ReadFull(c, b); err != nil {
		return err //nolint:wrapcheck // it is the connection's
	}
	c.first = b
	return nil
}

// Read implements [net.Conn].
func (c *conn) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	c.releaseSlot()
	left := c.left.Load()
	if left < 0 {
		return c.Conn.Read(b) //nolint:wrapcheck // it is the connection's
	}
	if left == 0 && len(b) > 0 {
		c.in.drop(c, reasonBytes)
		return 0, errTooMuch
	}
	n, err := c.Conn.Read(b[:min(int64(len(b)), left)])
	c.left.Store(left - int64(n))
	switch {
	case c.secure == nil && !c.begun && !c.fits(b[:n]):
		c.in.drop(c, reasonBytes)
		return 0, errTooMuch
	case c.begun && n > 0:
		c.computes = true
		c.in.admission.resume()
	}
	return n, err //nolint:wrapcheck // it is the connection's
}

// Write implements [net.Conn]. What was computed is written at the end of a turn.
func (c *conn) Write(b []byte) (int, error) {
	c.releaseSlot()
	c.wrote.Store(time.Now().UnixNano())
	return c.Conn.Write(b) //nolint:wrapcheck // it is the connection's
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	if ended := c.in.remove(c); ended != nil {
		ended()
	}
	return c.Conn.Close() //nolint:wrapcheck // it is the connection's
}

// listener hands out the connections of one stage.
type listener struct {
	addr  net.Addr
	conns chan *conn
	done  <-chan struct{} // closed when no more come
}

// Accept implements [net.Listener].
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener]. What really listens is [Acceptor.Run]'s.
func (l *listener) Close() error { return nil }

// Addr implements [net.Listener].
func (l *listener) Addr() net.Addr { return l.addr }

// Credentials are those of both servers: the handshake was made before a
// connection was handed to them.
func Credentials() credentials.TransportCredentials { return handed{} }

type handed struct{}

// ServerHandshake implements [credentials.TransportCredentials].
func (handed) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*conn)
	if !ok || c.secure == nil {
		return nil, nil, errors.New("the connection does not come from an acceptor")
	}
	return c.secure, c.info, nil
}

// ClientHandshake implements [credentials.TransportCredentials].
func (handed) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a server's")
}

// Info implements [credentials.TransportCredentials].
func (handed) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements [credentials.TransportCredentials].
func (h handed) Clone() credentials.TransportCredentials { return h }

// OverrideServerName implements [credentials.TransportCredentials].
func (handed) OverrideServerName(string) error { return nil }
