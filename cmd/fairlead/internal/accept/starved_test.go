package accept

import (
	"context"
	"crypto"
	"crypto/tls"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/connectivity"
)

// quantum is what the CPU does at a time.
const quantum = 10 * time.Millisecond

// slowCPU is a key whose signatures take work of a CPU that all who use it at a
// time share, as goroutines share a real one.
type slowCPU struct {
	crypto.Signer
	work int // of a signature, in quanta

	mu        sync.Mutex
	now, peak atomic.Int64 // who computes
}

func (s *slowCPU) Sign(r io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	n := s.now.Add(1)
	defer s.now.Add(-1)
	for peak := s.peak.Load(); n > peak && !s.peak.CompareAndSwap(peak, n); peak = s.peak.Load() {
	}
	for range s.work {
		s.compute()
	}
	return s.Signer.Sign(r, digest, opts)
}

func (s *slowCPU) compute() {
	s.mu.Lock()
	defer s.mu.Unlock()
	<-time.After(quantum)
}

// slow gives the server a slow CPU.
func (s *slowCPU) slow(c *Config) {
	cert := c.TLS.Certificates[0]
	s.Signer, _ = cert.PrivateKey.(crypto.Signer)
	cert.PrivateKey = s
	c.TLS.Certificates = []tls.Certificate{cert}
}

// attempt makes a handshake with the server, or fails within a time.
func (f *front) attempt(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", f.addr)
	if err != nil {
		return err
	}
	defer func() { _ = raw.Close() }()
	c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}) // it is the server that is tested
	if err := c.HandshakeContext(ctx); err != nil {
		return err
	}
	// A client's handshake of TLS 1.3 is over before the server's is: an answer is not.
	if _, err := c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}

// All who come at once are served by a CPU that needs several times of a
// connection's timeout for all of them, because what was begun is finished first.
// Each client has only as much patience as an agent of before.
func TestStarvedServerServesAll(t *testing.T) {
	t.Parallel()
	const (
		peers   = 100
		timeout = time.Second
		most    = 60 * time.Second // they need two
	)
	cpu := &slowCPU{work: 2}
	f := start(t, func(c *Config) { cpu.slow(c); c.MaxConnections, c.Timeout = 1000, timeout })
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	var served, tries atomic.Int64
	var wg sync.WaitGroup
	for range peers {
		wg.Go(func() {
			for ctx.Err() == nil {
				tries.Add(1)
				if err := f.attempt(ctx, timeout); err == nil {
					served.Add(1)
					return
				}
			}
		})
	}
	wg.Wait()
	if served.Load() != peers {
		t.Errorf("%d of %d were served", served.Load(), peers)
	}
	t.Logf("%d tries; %d computed at a time at most", tries.Load(), cpu.peak.Load())
	if peak := cpu.peak.Load(); peak > int64(runtime.GOMAXPROCS(0)) {
		t.Errorf("%d handshakes computed at a time", peak)
	}
}

// What a handshake waits for in the server is not held against the peer.
func TestTimeoutStopsWhileWaiting(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	f := start(t, func(c *Config) { c.Timeout = timeout })
	f.admission.end() // nothing begins by itself
	for range f.admission.most {
		f.admission.resume() // somebody computes
	}
	served := make(chan error, 1)
	go func() { served <- f.attempt(t.Context(), time.Minute) }()
	f.counted(handshaking, 1)
	select {
	case err := <-served:
		t.Fatalf("a connection did not wait: %v", err)
	case <-time.After(timeout + time.Second):
	}
	for range f.admission.most {
		f.admission.leave()
	}
	if err := <-served; err != nil {
		t.Errorf("a connection was closed because the server was late: %v", err)
	}
}

// The time of the server is bounded, too.
func TestTimeoutStopsDuringCalls(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Timeout = 200 * time.Millisecond })
	began := time.Now()
	c := f.dial()
	s := tls.Client(c, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}) // it is the server that is tested
	if err := s.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.counted(unauthenticated, 1)
	done := f.Answering(c.LocalAddr().String())
	ended(t, c)
	if lasted := time.Since(began); lasted < maxLate*200*time.Millisecond {
		t.Errorf("closed after %s, while its call was being answered", lasted)
	}
	done()
	f.counted(unauthenticated, 0)
	f.admission.mu.Lock()
	defer f.admission.mu.Unlock()
	if f.admission.answering != 0 {
		t.Error("an answer is counted after its end")
	}
}

// Peers that stop anywhere in their handshake, or read nothing, hold up nobody.
func TestSlowPeersHoldNoSlot(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.MaxConnections, c.Timeout = 1000, time.Hour })
	hello := helloOf(t)
	for n := 1; n <= len(hello); n += max(1, len(hello)/50) {
		for range 2 {
			if _, err := f.dial().Write(hello[:n]); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 50 { // and those that have had their first turn
		if _, err := f.dial().Write(hello); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 { // and a part of what follows
		if _, err := f.dial().Write(append(slices.Clip(hello), 20, 3, 3, 0, 1)); err != nil {
			t.Fatal(err)
		}
	}
	f.becomes(f.grpc(true), connectivity.Ready)
	f.becomes(f.grpc(false), connectivity.Ready)
}

// No handshake is computed for peers that have gone while they waited.
func TestNoHandshakeForClosedConnections(t *testing.T) {
	t.Parallel()
	cpu := &slowCPU{work: 1}
	var signed atomic.Int64
	f := start(t, func(c *Config) {
		cpu.slow(c)
		c.MaxConnections = 1000
		c.TLS.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			signed.Add(1)
			return &c.TLS.Certificates[0], nil
		}
	})
	f.admission.end()
	for range f.admission.most {
		f.admission.resume() // somebody computes
	}
	hello := helloOf(t)
	const gone = 100
	for range gone {
		c := f.dial()
		if _, err := c.Write(hello); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	f.counted(handshaking, gone)
	for range f.admission.most {
		f.admission.leave()
	}
	f.counted(handshaking, 0)
	if n := signed.Load(); n > 0 {
		t.Errorf("%d handshakes were computed for peers that have gone", n)
	}
	if err := f.attempt(t.Context(), time.Minute); err != nil {
		t.Errorf("a peer that is there: %v", err)
	}
}
