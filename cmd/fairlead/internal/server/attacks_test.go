package server

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// stages are attacks that stop at each stage of a connection, or send there what is
// cheap to send, each until the connection ends.
func stages() map[string]func(net.Conn) error {
	out := map[string]func(net.Conn) error{
		"hello_unfinished": func(c net.Conn) error { // all that was ever read of one
			b := append([]byte{22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff}, make([]byte, 1<<14-4)...)
			return sayOnce(c, append(append(b, 22, 3, 1, 0x38, 0), make([]byte, 0x3800)...))
		},
		"hello_only": func(c net.Conn) error {
			hello(c)
			return hold(c)
		},
		"hello_and_bytes": func(c net.Conn) error { // a record that comes byte by byte
			hello(c)
			if _, err := c.Write([]byte{20, 3, 3, 0x3f, 0xff}); err != nil {
				return err
			}
			return flood(c, []byte{1})
		},
		"no_settings": func(c net.Conn) error { return sayOnce(secure(c), []byte(http2.ClientPreface)) },
	}
	maps.Copy(out, streams())
	return out
}

// streams are attacks by the frames of calls.
func streams() map[string]func(net.Conn) error {
	say := func(c net.Conn, write func(f *http2.Framer, block []byte)) error {
		var block, b bytes.Buffer
		enc := hpack.NewEncoder(&block)
		for _, h := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", pathCreate}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
			_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		b.WriteString(http2.ClientPreface)
		f := http2.NewFramer(&b, nil)
		_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		write(f, block.Bytes())
		return sayOnce(secure(c), b.Bytes())
	}
	out := map[string]func(net.Conn) error{
		"headers_without_end": func(c net.Conn) error {
			var more bytes.Buffer
			_ = hpack.NewEncoder(&more).WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("~", 12<<10), Sensitive: true})
			return say(c, func(f *http2.Framer, block []byte) {
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: append(block, more.Bytes()...)})
			})
		},
	}
	// As many frames as a connection may send, and as many as its bytes allow.
	for _, n := range []int{120, 5000} {
		out[fmt.Sprintf("continuations_%d", n)] = func(c net.Conn) error {
			return say(c, func(f *http2.Framer, block []byte) {
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block})
				for range n {
					_ = f.WriteContinuation(1, false, nil)
				}
			})
		}
		out[fmt.Sprintf("cancelled_%d", n)] = func(c net.Conn) error { // streams that are cancelled before they are read
			return say(c, func(f *http2.Framer, block []byte) {
				for i := range uint32(min(n/2, 500)) {
					_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1 + 2*i, BlockFragment: block, EndHeaders: true})
					_ = f.WriteRSTStream(1+2*i, http2.ErrCodeCancel)
				}
			})
		}
		out[fmt.Sprintf("tiny_frames_%d", n)] = func(c net.Conn) error {
			return say(c, func(f *http2.Framer, block []byte) {
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true})
				_ = f.WriteData(1, false, []byte{0, 0, 0, 0x7f, 0xff})
				for range n {
					_ = f.WriteData(1, false, []byte{0})
				}
			})
		}
		out[fmt.Sprintf("calls_%d", n)] = func(c net.Conn) error { return sayOnce(secure(c), calls(pathCreate, uint32(min(n, 500)), 0)) }
	}
	return out
}

// hello sends a ClientHello and hears no answer.
func hello(c net.Conn) {
	_ = tls.Client(deaf{c}, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}).Handshake() // it is the server that is tested
}

type deaf struct{ net.Conn }

func (deaf) Read([]byte) (int, error) { return 0, errors.New("deaf") }
