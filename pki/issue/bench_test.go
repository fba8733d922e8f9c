package issue_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	securityapi "istio.io/api/security/v1alpha1"

	"github.com/fairlead/fairlead/pki"
	"github.com/fairlead/fairlead/pki/svid"
)

// BenchmarkCreateCertificate is what one signature costs the server, its CSR
// parsed and its caller authenticated, without the network. That of a host is on
// disk before it is answered; docs/scale.md counts with both.
func BenchmarkCreateCertificate(b *testing.B) {
	s := start(b, settings{burst: 1 << 30})
	id := s.join(b, host(b, "web-1", "shop/web"))
	ctx := peer.NewContext(context.Background(), &peer.Peer{
		Addr:     &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)},
		AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: id.Certificates, VerifiedChains: [][]*x509.Certificate{id.Certificates}}},
	})
	for name, req := range map[string]*securityapi.IstioCertificateRequest{
		"workload": request(b, newKey(b), "spiffe://mesh.test/ns/shop/sa/web"),
		"host":     request(b, newKey(b), ""),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := s.service.CreateCertificate(ctx, req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkHandshake is the server's half of a TLS 1.3 handshake in which both
// ends prove who they are; cpu-µs/op is what counts.
func BenchmarkHandshake(b *testing.B) {
	s := start(b, settings{burst: 1 << 30})
	id := s.join(b, host(b, "web-1", "shop/web"))
	front, err := pki.NewServerTLS(pki.ServerTLSConfig{
		Authority: s.authority, Logger: slog.New(slog.DiscardHandler), Refused: s.service.HandshakeRefused,
	}, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	client := svid.ClientTLS(func() *svid.Identity { return id })
	var used time.Duration
	for b.Loop() {
		used += handshake(b, front.Config(), client)
	}
	b.ReportMetric(float64(used.Microseconds())/float64(b.N), "cpu-µs/op")
}

// handshake gives the processor time of the server's half.
func handshake(b *testing.B, server, client *tls.Config) time.Duration {
	b.Helper()
	near, far := net.Pipe()
	done := make(chan error, 1)
	go func() {
		c := tls.Client(far, client)
		err := c.HandshakeContext(b.Context())
		if err == nil {
			_, err = c.Read(make([]byte, 1)) // the server's verdict comes after the handshake
		}
		done <- err
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime(b)
	c := tls.Server(near, server)
	if err := c.HandshakeContext(b.Context()); err != nil {
		b.Fatal(err)
	}
	used := threadTime(b) - began
	if _, err := c.Write([]byte{0}); err != nil {
		b.Fatal(err)
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	_, _ = near.Close(), far.Close()
	return used
}

func threadTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
