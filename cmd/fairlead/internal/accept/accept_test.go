package accept

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"

	"github.com/fairlead/fairlead/internal/envoytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// front is an acceptor under test with its two gRPC servers, which have no
// services.
type front struct {
	*Acceptor
	t    *testing.T
	addr string
	cert tls.Certificate // of every peer that shows one
}

// start runs an acceptor that knows every certificate.
func start(t *testing.T, change func(*Config)) *front {
	t.Helper()
	f := &front{t: t, cert: certificate(t, "spiffe://mesh/fairlead/host/a")}
	cfg := Config{
		Logger: slog.New(slog.DiscardHandler), MaxConnections: 100, MaxPerIdentity: 100,
		TLS: &tls.Config{
			Certificates: []tls.Certificate{f.cert}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		},
		Identify: func(chain []*x509.Certificate) (string, bool) { return chain[0].URIs[0].String(), true },
	}
	change(&cfg)
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = l.Addr().String()
	if f.Acceptor, err = New(cfg, l.Addr()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.Run(ctx, l); err != nil {
			t.Error(err)
		}
	})
	for _, l := range []net.Listener{f.Authenticated(), f.Unauthenticated()} {
		g := grpc.NewServer(grpc.Creds(Credentials()))
		wg.Go(func() { _ = g.Serve(l) })
		t.Cleanup(g.Stop)
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	return f
}

// dial opens a connection and sends nothing.
func (f *front) dial() net.Conn {
	f.t.Helper()
	var d net.Dialer
	c, err := d.DialContext(f.t.Context(), "tcp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = c.Close() })
	return c
}

// grpc opens a connection as gRPC does, with a certificate or without.
func (f *front) grpc(known bool) *grpc.ClientConn {
	f.t.Helper()
	cfg := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13} // it is the server that is tested
	if known {
		cfg.Certificates = []tls.Certificate{f.cert}
	}
	c, err := grpc.NewClient(f.addr, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = c.Close() })
	c.Connect()
	return c
}

// becomes waits for a state of a connection.
func (f *front) becomes(c *grpc.ClientConn, want connectivity.State) {
	f.t.Helper()
	for c.GetState() != want {
		if !c.WaitForStateChange(f.t.Context(), c.GetState()) {
			f.t.Fatalf("never %s", want)
		}
	}
}

// counted waits until there are so many connections of a stage.
func (f *front) counted(s stage, want int) {
	f.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(envoytest.Patience); f.counts()[s] != want; <-tick.C {
		if time.Now().After(deadline) {
			f.t.Fatalf("%v connections by stage, want %d of %s", f.counts(), want, s)
		}
	}
}

// ended waits for the end of a connection.
func ended(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(envoytest.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the connection was not closed")
	}
}

func TestOneIdentityHasSoManyConnections(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.MaxPerIdentity = 2 })
	first, second := f.grpc(true), f.grpc(true)
	f.becomes(first, connectivity.Ready)
	f.becomes(second, connectivity.Ready)
	third := f.grpc(true)
	f.becomes(third, connectivity.TransientFailure)
	_ = first.Close()
	f.becomes(third, connectivity.Ready) // it tries again by itself
}

// Peers that hold all connections without a proof of who they are keep out
// neither those that have one nor new ones.
func TestUnauthenticatedConnectionsGiveWay(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.MaxConnections, c.Timeout = 8, time.Hour })
	var silent []net.Conn
	for range 8 {
		silent = append(silent, f.dial())
	}
	f.counted(handshaking, 8)
	peer, host := f.grpc(false), f.grpc(true)
	f.becomes(peer, connectivity.Ready)
	f.becomes(host, connectivity.Ready)
	ended(t, silent[0])
	ended(t, silent[1])
	f.counted(handshaking, 6)
}

// An authenticated connection stays, whoever else comes.
func TestAuthenticatedConnectionsNeverGiveWay(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.MaxConnections = 3 })
	var known []*grpc.ClientConn
	for range 3 {
		known = append(known, f.grpc(true))
		f.becomes(known[len(known)-1], connectivity.Ready)
	}
	for range 20 {
		ended(t, f.dial())
	}
	f.counted(handshaking, 0)
	for _, c := range known {
		if s := c.GetState(); s != connectivity.Ready {
			t.Errorf("an authenticated connection is %s", s)
		}
	}
	_ = known[0].Close()
	f.becomes(f.grpc(true), connectivity.Ready)
}

// Whoever is not authenticated is closed after the timeout, however far it has
// come and whatever it goes on sending; who is stays.
func TestUnauthenticatedConnectionsEnd(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Timeout = 300 * time.Millisecond })
	host := f.grpc(true)
	f.becomes(host, connectivity.Ready)
	f.becomes(f.grpc(false), connectivity.Ready)
	hello := helloOf(t)
	var all []net.Conn
	for n := 0; n <= len(hello); n += max(1, len(hello)/20) {
		c := f.dial()
		if _, err := c.Write(hello[:n]); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	for _, c := range all {
		ended(t, c)
	}
	f.counted(unauthenticated, 0)
	f.counted(handshaking, 0)
	if s := host.GetState(); s != connectivity.Ready {
		t.Errorf("the authenticated connection is %s", s)
	}
}

// A handshake is read for so many bytes only.
func TestHandshakeIsBounded(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Timeout = time.Hour })
	c := f.dial()
	// One message of a handshake, in records, that is as large as TLS allows.
	record := append([]byte{22, 3, 1, 0x40, 0}, make([]byte, 1<<14)...)
	for i := range 4 {
		if i == 0 {
			copy(record[5:], []byte{1, 0, 0xff, 0xff}) // a ClientHello of 65,535 bytes
		} else {
			copy(record[5:], []byte{0, 0, 0, 0})
		}
		if _, err := c.Write(record); err != nil {
			break // it is closed already
		}
	}
	ended(t, c)
}

// What says that it is larger than a ClientHello is not waited for: memory is taken
// for what a record says, not for what has come.
func TestLargeHelloIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Timeout = time.Hour })
	for _, says := range [][]byte{
		{22, 3, 1, 0x40, 0},
		{21, 3, 1, 0x40, 0},                    // an alert
		{22, 3, 1, 0, 1, 1, 22, 3, 1, 0x40, 0}, // the second record
	} {
		c := f.dial()
		if _, err := c.Write(says); err != nil {
			t.Fatal(err)
		}
		ended(t, c)
	}
	many := f.dial() // in small records
	for range helloBytes / 100 {
		if _, err := many.Write(append([]byte{22, 3, 1, 0, 100, 1, 0, 0xff, 0xff}, make([]byte, 96)...)); err != nil {
			break // it is closed already
		}
	}
	ended(t, many)
}

// Handshakes that have begun have more of the server than those that wait, and are
// fewer.
func TestBegunHandshakesAreFew(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.MaxConnections, c.Timeout = 1<<20, time.Hour })
	if w, b := f.pools[waitingPool].most, f.pools[begunPool].most; b > w/10 || b > DefaultMaxUnauthenticated {
		t.Errorf("%d handshakes may be under way, and %d wait", b, w)
	}
	f.mu.Lock()
	f.pools[begunPool].most = 4
	f.mu.Unlock()
	hello := helloOf(t)
	for range 10 {
		f.dial()
	}
	for range 10 {
		if _, err := f.dial().Write(hello); err != nil {
			t.Fatal(err)
		}
	}
	f.counted(handshaking, 14)
	f.becomes(f.grpc(true), connectivity.Ready)
}

// Who has all the room, from however many addresses, displaces no connection from an
// address that hosts have, unless there are too many of those, too.
func TestAddressesOfHostsAreSpared(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.MaxConnections, c.Timeout = 8, time.Hour })
	f.becomes(f.grpc(true), connectivity.Ready)
	mine := f.dial() // and is slow
	f.counted(handshaking, 1)
	others := func() {
		var first net.Conn
		for i := range 30 {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i))}}
			c, err := d.DialContext(t.Context(), "tcp", f.addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			if i == 23 { // which goes for the last one
				first = c
			}
		}
		ended(t, first)
		f.counted(handshaking, 7)
	}
	others()
	hello := f.dial() // alone with a handshake that has begun
	if _, err := hello.Write(helloOf(t)); err != nil {
		t.Fatal(err)
	}
	f.begun(1)
	others()
	f.begun(1)
	s := tls.Client(mine, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{f.cert}}) // it is the server that is tested
	if err := s.HandshakeContext(t.Context()); err != nil {
		t.Fatalf("a connection from the address of a host was displaced: %v", err)
	}
	f.counted(authenticated, 2)
	for range 30 {
		f.dial()
	}
	f.becomes(f.grpc(false), connectivity.Ready)
}

// helloOf is how a client begins.
func helloOf(t *testing.T) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		_ = tls.Client(ours, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}).HandshakeContext(t.Context())
	})
	b := make([]byte, 16<<10)
	n, err := theirs.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	return b[:n]
}

// certificate is one that names an identity, signed by nobody in particular.
func certificate(t *testing.T, id string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	uri, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{uri}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
