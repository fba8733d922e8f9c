package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"golang.org/x/net/http2/hpack"
)

// Handler gets the frames of a stream, on the goroutine of [Conn.Run].
type Handler interface {
	// Message is one message; it is valid until Message returns.
	Message(msg []byte)
	// Closed is called once, when the stream has ended.
	Closed(err error)
}

// Conn is a connection to a gRPC server.
type Conn struct {
	nc        net.Conn
	authority string

	mu     sync.Mutex // guards all following fields
	out    []byte     // frames that are not written yet
	window int        // what the server lets us send
	initOf int        // window of a new stream
	nextID uint32
	byID   map[uint32]*Stream
	ended  bool

	// Of Run's goroutine.
	frame   frame
	control []byte
	taken   int // bytes taken since the last window update
	headers *hpack.Decoder
	fields  map[string]string
}

// Stream is one call on a connection.
type Stream struct {
	conn    *Conn
	id      uint32
	handler Handler
	window  int    // guarded by conn.mu
	pending []byte // guarded by conn.mu: what the window does not let through
	in      assembly
	taken   int
}

// New makes a connection of one to the server, on which HTTP/2 has been agreed.
func New(nc net.Conn, authority string) *Conn {
	c := &Conn{
		nc: nc, authority: authority, window: defaultWindow, initOf: defaultWindow,
		nextID: 1, byID: map[uint32]*Stream{},
	}
	c.out = append(c.out, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"...)
	settings := binary.BigEndian.AppendUint16(nil, settingInitialWindow)
	settings = binary.BigEndian.AppendUint32(settings, streamWindow)
	c.out = appendFrame(c.out, frameSettings, 0, 0, settings)
	c.out = appendWindowUpdate(c.out, 0, connWindow-defaultWindow)
	return c
}

// ErrEnded is the error of a stream whose connection has ended.
var ErrEnded = errors.New("the connection has ended")

// Open begins a call of a method, /PACKAGE.SERVICE/METHOD.
func (c *Conn) Open(method string, h Handler) (*Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil, ErrEnded
	}
	s := &Stream{conn: c, id: c.nextID, handler: h, window: c.initOf}
	c.nextID += 2
	c.byID[s.id] = s
	c.out = appendFrame(c.out, frameHeaders, flagEndHeaders, s.id, c.requestHeaders(method))
	return s, nil
}

// requestHeaders are literals without indexing: a table costs more than it saves
// for one call.
func (c *Conn) requestHeaders(method string) []byte {
	var b []byte
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", method},
		{":authority", c.authority},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		b = append(b, 0)
		b = appendString(appendString(b, f[0]), f[1])
	}
	return b
}

// appendString is a string literal of HPACK; those here are shorter than 127.
func appendString(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }

// Send queues one message, of which the parts are pieces. Flush writes it; Run
// flushes after what it has read.
func (s *Stream) Send(msg []byte) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	s.pending = append(s.pending, 0)
	s.pending = binary.BigEndian.AppendUint32(s.pending, uint32(len(msg)))
	s.pending = append(s.pending, msg...)
	s.push()
}

// push moves what the windows let through. Called with mu held.
func (s *Stream) push() {
	c := s.conn
	for len(s.pending) > 0 {
		n := min(len(s.pending), s.window, c.window, maxFrame)
		if n <= 0 {
			return
		}
		c.out = appendFrame(c.out, frameData, 0, s.id, s.pending[:n])
		s.window -= n
		c.window -= n
		s.pending = s.pending[n:]
	}
	s.pending = nil
}

// Flush writes what is queued.
func (c *Conn) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.nc.Write(c.out)
	if cap(c.out) > maxFrame {
		c.out = nil
	}
	c.out = c.out[:0]
	return err
}

// Close ends the connection; Run returns.
func (c *Conn) Close() error { return c.nc.Close() }

// Run reads until the connection ends, and notifies every stream of its end.
func (c *Conn) Run() error {
	err := c.read()
	c.mu.Lock()
	c.ended = true
	left := c.byID
	c.byID = map[uint32]*Stream{}
	c.mu.Unlock()
	_ = c.nc.Close()
	for _, s := range left {
		s.handler.Closed(errors.Join(ErrEnded, err))
	}
	return err
}

func (c *Conn) read() error {
	if err := c.Flush(); err != nil {
		return err
	}
	var small [256]byte // held while nothing comes, so it is small
	for {
		n, err := c.nc.Read(small[:])
		if err != nil {
			return err
		}
		if err := c.take(small[:n]); err != nil {
			return err
		}
		if n == len(small) || !c.between() {
			if err := c.readMuch(); err != nil {
				return err
			}
		}
		if err := c.Flush(); err != nil {
			return err
		}
	}
}

// readMuch reads with a large buffer until nothing is half read.
func (c *Conn) readMuch() error {
	large, _ := readBuffers.Get().(*[]byte)
	defer readBuffers.Put(large)
	for {
		n, err := c.nc.Read(*large)
		if err != nil {
			return err
		}
		if err := c.take((*large)[:n]); err != nil {
			return err
		}
		if c.between() && n < len(*large) {
			return nil
		}
		if err := c.Flush(); err != nil {
			return err
		}
	}
}

func (c *Conn) between() bool {
	if !c.frame.between() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.byID {
		if !s.in.between() {
			return false
		}
	}
	return true
}

// take takes bytes as they come.
func (c *Conn) take(data []byte) error {
	f := &c.frame
	for len(data) > 0 || f.have == headerLength {
		if f.have < headerLength {
			var whole bool
			if data, whole = f.begin(data); !whole {
				return nil
			}
			if f.kind != frameData && f.left > maxControl || f.flags&flagPadded != 0 && f.kind <= frameHeaders {
				return fmt.Errorf("reading a frame: type %d, flags %x, %d bytes", f.kind, f.flags, f.left)
			}
		}
		n := min(f.left, len(data))
		piece := data[:n]
		data = data[n:]
		f.left -= n
		if err := c.payload(piece); err != nil {
			return err
		}
		if f.left > 0 {
			return nil
		}
		f.have = 0
	}
	return nil
}

// payload takes a piece of a frame's payload, the last one if nothing is left.
func (c *Conn) payload(piece []byte) error {
	f := &c.frame
	if f.kind == frameData {
		return c.data(piece)
	}
	c.control = append(c.control, piece...)
	if f.left > 0 {
		return nil
	}
	err := c.controlFrame(f, c.control)
	c.control = c.control[:0]
	return err
}

func (c *Conn) stream(id uint32) *Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byID[id]
}

func (c *Conn) data(piece []byte) error {
	s := c.stream(c.frame.stream)
	if s != nil {
		if err := s.in.feed(piece, s.handler.Message); err != nil {
			return err
		}
		s.taken += len(piece)
	}
	c.taken += len(piece)
	c.mu.Lock()
	defer c.mu.Unlock()
	if s != nil && s.taken > streamWindow/2 {
		c.out = appendWindowUpdate(c.out, s.id, s.taken)
		s.taken = 0
	}
	if c.taken > connWindow/2 {
		c.out = appendWindowUpdate(c.out, 0, c.taken)
		c.taken = 0
	}
	return nil
}

func (c *Conn) controlFrame(f *frame, payload []byte) error {
	switch f.kind {
	case frameHeaders:
		return c.readHeaders(f, payload)
	case frameContinuation:
		return errors.New("reading a frame: headers in several frames")
	case frameRST:
		if s := c.drop(f.stream); s != nil {
			s.handler.Closed(fmt.Errorf("reset by the server, %x", payload))
		}
	case frameGoAway:
		return fmt.Errorf("the server sent GOAWAY: %w", io.EOF)
	case frameSettings, framePing, frameWindowUpdate:
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.flow(f, payload)
	}
	return nil
}

// flow is called with mu held.
func (c *Conn) flow(f *frame, payload []byte) error {
	switch {
	case f.kind == framePing && f.flags&flagACK == 0:
		c.out = appendFrame(c.out, framePing, flagACK, 0, payload)
	case f.kind == frameSettings && f.flags&flagACK == 0:
		for ; len(payload) >= 6; payload = payload[6:] {
			if binary.BigEndian.Uint16(payload) != settingInitialWindow {
				continue
			}
			size := int(binary.BigEndian.Uint32(payload[2:]))
			for _, s := range c.byID {
				s.window += size - c.initOf
			}
			c.initOf = size
		}
		c.out = appendFrame(c.out, frameSettings, flagACK, 0, nil)
		c.pushAll()
	case f.kind == frameWindowUpdate && len(payload) == 4:
		n := int(binary.BigEndian.Uint32(payload))
		if f.stream == 0 {
			c.window += n
			c.pushAll()
		} else if s := c.byID[f.stream]; s != nil {
			s.window += n
			s.push()
		}
	}
	return nil
}

func (c *Conn) pushAll() {
	for _, s := range c.byID {
		s.push()
	}
}

func (c *Conn) drop(id uint32) *Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.byID[id]
	delete(c.byID, id)
	return s
}

// readHeaders reads headers, of which only those that end a stream mean
// anything here; all are decoded, for the table of HPACK is one.
func (c *Conn) readHeaders(f *frame, payload []byte) error {
	if f.flags&flagEndHeaders == 0 || f.flags&flagPriority != 0 {
		return errors.New("reading a frame: headers in several frames, or with a priority")
	}
	if c.headers == nil {
		c.headers = hpack.NewDecoder(4096, func(h hpack.HeaderField) {
			if c.fields != nil {
				c.fields[h.Name] = h.Value
			}
		})
	}
	if f.flags&flagEndStream != 0 {
		c.fields = map[string]string{}
	}
	if _, err := c.headers.Write(payload); err != nil {
		return fmt.Errorf("reading headers: %w", err)
	}
	if err := c.headers.Close(); err != nil {
		return fmt.Errorf("reading headers: %w", err)
	}
	if f.flags&flagEndStream == 0 {
		return nil
	}
	code, _ := strconv.Atoi(c.fields["grpc-status"])
	err := &StatusError{Code: code, Message: c.fields["grpc-message"], HTTP: c.fields[":status"]}
	c.fields = nil
	if s := c.drop(f.stream); s != nil {
		s.handler.Closed(err)
	}
	return nil
}

// StatusError is how a server ended a stream.
type StatusError struct {
	Code    int // of gRPC
	Message string
	HTTP    string // the status of HTTP, or empty
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("ended by the server with code %d: %s", e.Code, e.Message)
}
