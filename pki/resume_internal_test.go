package pki

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// TestServerResumesNoSession connects to the control plane's listener again and
// again: a resumed session would not show the client's certificate, which may have
// ended.
func TestServerResumesNoSession(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a, err := New(Config{Dir: t.TempDir(), TrustDomain: spiffeid.RequireTrustDomainFromString("mesh.test"), Logger: slog.New(slog.DiscardHandler)}, now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	own, err := NewServerTLS(ServerTLSConfig{Authority: a, Logger: slog.New(slog.DiscardHandler)}, now)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inner.Close() })
	go greet(tls.NewListener(inner, own.Config()))
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		cfg := &tls.Config{
			InsecureSkipVerify: true, ServerName: "server", MaxVersion: version, NextProtos: []string{"h2"},
			ClientSessionCache: tls.NewLRUClientSessionCache(8),
		}
		for range 3 {
			conn, err := (&tls.Dialer{Config: cfg}).DialContext(t.Context(), "tcp", inner.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			_, err = io.Copy(io.Discard, conn) // tickets come behind the handshake
			if err != nil {
				t.Error(err)
			}
			if c, ok := conn.(*tls.Conn); !ok || c.ConnectionState().DidResume {
				t.Errorf("TLS %x: the session was resumed", version)
			}
			_ = conn.Close()
		}
	}
}

// greet says hello to whoever connects, and closes.
func greet(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "hello")
		_ = c.Close()
	}
}
