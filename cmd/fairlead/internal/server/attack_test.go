package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/accept"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pki/svid"
)

const (
	pathCreate = "/istio.v1.auth.IstioCertificateService/CreateCertificate"
	pathStream = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
)

// attacks are what somebody does with a connection who has proved nothing, each
// until the connection ends.
func attacks(stolen tls.Certificate) map[string]func(net.Conn) error {
	return map[string]func(net.Conn) error{
		"silence": hold,
		"hello": func(c net.Conn) error { // a ClientHello of 64 KiB, never finished
			return flood(c, append([]byte{22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff}, make([]byte, 1<<14-4)...))
		},
		"handshake": func(c net.Conn) error { return hold(secure(c)) },
		"preface":   func(c net.Conn) error { return sayOnce(secure(c), []byte(http2.ClientPreface[:20])) },
		"headers":   func(c net.Conn) error { return sayOnce(secure(c), calls(pathCreate, 256, 0)) },
		"fields":    func(c net.Conn) error { return sayOnce(secure(c), calls(pathCreate, 256, 2000)) },
		"bodies":    func(c net.Conn) error { return bodies(secure(c), pathCreate) },
		"streams":   func(c net.Conn) error { return bodies(secure(c), pathStream) },
		"resets": func(c net.Conn) error {
			return flood(secure(c), frames(func(f *http2.Framer) { _ = f.WriteRSTStream(1, http2.ErrCodeCancel) }))
		},
		"pings": func(c net.Conn) error {
			return flood(secure(c), frames(func(f *http2.Framer) { _ = f.WritePing(false, [8]byte{}) }))
		},
		"settings": func(c net.Conn) error {
			return flood(secure(c), frames(func(f *http2.Framer) { _ = f.WriteSettings() }))
		},
		"workload": func(c net.Conn) error { return bodies(secure(c, stolen), pathCreate) }, // a workload's certificate is no host's
	}
}

func secure(c net.Conn, certs ...tls.Certificate) net.Conn {
	return tls.Client(c, &tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, Certificates: certs, // it is the server that is tested
	})
}

// hold reads what comes until the connection ends.
func hold(c net.Conn) error {
	b := make([]byte, 256)
	for {
		if _, err := c.Read(b); err != nil {
			return err
		}
	}
}

func sayOnce(c net.Conn, what []byte) error {
	if _, err := c.Write(what); err != nil {
		return err
	}
	return hold(c)
}

// flood goes on saying the same, not so fast that the machine has time for nothing else.
func flood(c net.Conn, what []byte) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		if _, err := c.Write(what); err != nil {
			return err
		}
	}
}

func frames(write func(*http2.Framer)) []byte {
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&b, nil)
	_ = f.WriteSettings()
	for range 100 {
		write(f)
	}
	return b.Bytes()
}

// calls are the headers of so many calls, with so many more fields, that take a
// byte each on the wire.
func calls(path string, n uint32, fields int) []byte {
	var block, b bytes.Buffer
	enc := hpack.NewEncoder(&block)
	b.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&b, nil)
	_ = f.WriteSettings()
	for i := range n {
		block.Reset()
		for _, h := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", path}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
			_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		for range fields {
			_ = enc.WriteField(hpack.HeaderField{Name: "x", Value: "y"})
		}
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1 + 2*i, BlockFragment: block.Bytes(), EndHeaders: true})
	}
	return b.Bytes()
}

// bodies sends the 16 MiB that a message may have at most on each of four calls, as
// far as it is read.
func bodies(c net.Conn, path string) error {
	if _, err := c.Write(calls(path, 4, 0)); err != nil {
		return err
	}
	var b bytes.Buffer
	f := http2.NewFramer(&b, c)
	head := binary.BigEndian.AppendUint32([]byte{0}, 16<<20-1)
	for i := range uint32(4) {
		_ = f.WriteData(1+2*i, false, head)
	}
	chunk := make([]byte, 16<<10)
	room := 60 << 10
	for next := uint32(0); ; {
		for ; room >= len(chunk); next, room = next+1, room-len(chunk) {
			_ = f.WriteData(1+2*(next%4), false, chunk)
		}
		if _, err := c.Write(b.Bytes()); err != nil {
			return err
		}
		b.Reset()
		frame, err := f.ReadFrame()
		if err != nil {
			return err
		}
		if w, ok := frame.(*http2.WindowUpdateFrame); ok && w.StreamID == 0 {
			room += int(w.Increment)
		}
	}
}

// envAttack makes this test's binary a crowd of attackers: ADDRESS,FILE with a
// certificate and its key.
const envAttack = "FAIRLEAD_TEST_ATTACK"

// attackSize is how many connections a crowd keeps up.
const attackSize = 2000

// attackAlone keeps up the connections of a crowd, from some 150 addresses; one that is
// closed comes again. At a line of its input it opens no more, and ends with the last
// of its connections; at the end of its input it ends at once.
func attackAlone(args []string) error {
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 10); err != nil { // other machines have a CPU of their own
		return err
	}
	stolen, err := tls.LoadX509KeyPair(args[1], args[1])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	kinds := attacks(stolen)
	maps.Copy(kinds, stages())
	names := slices.Sorted(maps.Keys(kinds))
	var opened atomic.Int64
	var hold atomic.Bool
	var wg sync.WaitGroup
	for i := range attackSize {
		from := "127.0.0.1"
		if i%2 == 0 {
			from = fmt.Sprintf("127.0.%d.%d", 1+i%3, 1+i/2%100)
		}
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: envoytest.Attempt}
		wg.Go(func() {
			for again := 0; !hold.Load() && ctx.Err() == nil; again++ {
				conn, err := d.DialContext(ctx, "tcp", args[0])
				if err != nil {
					pause(ctx, 100*time.Millisecond)
					continue
				}
				if hold.Load() {
					_ = conn.Close()
					return
				}
				opened.Add(1)
				stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
				_ = kinds[names[(i+again)%len(names)]](conn)
				stop()
				_ = conn.Close()
				pause(ctx, time.Duration(rand.IntN(200))*time.Millisecond)
			}
		})
	}
	in := bufio.NewReader(os.Stdin)
	_, _ = in.ReadString('\n')
	hold.Store(true)
	go func() {
		_, _ = in.ReadString('\n')
		cancel()
	}()
	wg.Wait()
	fmt.Println(opened.Load()) //nolint:forbidigo // for who started it
	return nil
}

// attackers are attackers in a process of their own.
type attackers struct {
	hold func()
	// ended is closed when all of its connections have ended.
	ended <-chan struct{}
	// end says how many connections were opened in all.
	end func() (opened int)
}

func (p *process) attack(stolen *svid.Identity) attackers {
	p.t.Helper()
	cert := stolen.TLSCertificate()
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		p.t.Fatal(err)
	}
	file := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	for _, c := range cert.Certificate {
		file = append(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c})...)
	}
	path := filepath.Join(p.t.TempDir(), "stolen.pem")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		p.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(p.t.Context(), self)
	cmd.Env = append(os.Environ(), envAttack+"="+p.addr+","+path)
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	end := func() { _ = in.Close(); <-ended }
	p.t.Cleanup(end)
	return attackers{
		hold: func() { _, _ = in.Write([]byte("\n")) }, ended: ended,
		end: func() (opened int) {
			end()
			if _, err := fmt.Sscan(out.String(), &opened); err != nil {
				p.t.Error(err)
			}
			return opened
		},
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// reconnect opens a stream as a known host, and waits for its first configuration.
func (p *process) reconnect(ctx context.Context, id *svid.Identity) error {
	var last error
	for ctx.Err() == nil {
		if last = p.stream(ctx, id); last == nil {
			return nil
		}
		pause(ctx, 200*time.Millisecond)
	}
	return last
}

func (p *process) stream(ctx context.Context, id *svid.Identity) error {
	conn, err := grpc.NewClient(p.addr, grpc.WithTransportCredentials(credentials.NewTLS(svid.ClientTLS(func() *svid.Identity { return id }))))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	s, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return err
	}
	if err := s.Send(nodeRequest(p.t, "10.1.2.3", "cart")); err != nil {
		return err
	}
	_, err = s.Recv()
	return err
}

// TestAttackOfUnauthenticatedPeers: 2,000 connections that do the worst they can,
// and come again as often as they are closed, cost a bounded amount of memory,
// which is given back. Meanwhile hosts join and come back, one each half second: what
// the server keeps of them lies among what the attack leaves.
func TestAttackOfUnauthenticatedPeers(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 25 seconds")
	}
	const (
		most     = 200 << 20
		mostLeft = 20 << 20
		soon     = 5 * time.Second
		later    = 15 * time.Second
	)
	p := spawn(t, plaintextMesh)
	known, err := p.join(t.Context(), p.token("known", false))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := p.reconnect(t.Context(), known); err != nil {
		t.Fatal(err)
	}
	limit := max(soon, 20*time.Since(began)) // a machine that has other things to do
	client, err := svid.NewClient(svid.ClientConfig{Servers: []string{p.addr}})
	if err != nil {
		t.Fatal(err)
	}
	workload, err := client.Workload(t.Context(), known, cartPair(t))
	if err != nil {
		t.Fatal(err)
	}
	before, peak, computed := p.resident(), 0, p.cpu()
	began = time.Now()
	ctx := t.Context()
	c := p.attack(workload)
	watching, watched := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for watching.Err() == nil {
			peak = max(peak, p.resident())
			pause(watching, 20*time.Millisecond)
		}
	})
	var joins, returns []time.Duration
	next := time.NewTicker(500 * time.Millisecond)
	defer next.Stop()
	for time.Since(began) < 8*time.Second {
		at := time.Now()
		each, done := context.WithTimeout(ctx, 4*limit)
		if err := p.reconnect(each, known); err != nil {
			t.Errorf("a known host does not come back: %v", err)
		}
		returns = append(returns, time.Since(at))
		token := p.token(fmt.Sprintf("new-%d", len(joins)), len(joins)%2 == 1)
		at = time.Now()
		if _, err := p.join(each, token); err != nil {
			t.Errorf("a new host does not join: %v", err)
		}
		joins = append(joins, time.Since(at))
		done()
		<-next.C
	}
	computed = p.cpu() - computed
	lasted := time.Since(began)
	c.hold()
	held := time.Now()
	select {
	case <-c.ended:
	case <-time.After(envoytest.Patience):
		t.Fatal("connections do not end")
	}
	ended := time.Since(held)
	pause(ctx, max(later-ended, later-accept.DefaultTimeout)) // a slow machine ends the last ones late
	watched()
	wg.Wait()
	left := p.resident() - before
	for what, list := range map[string][]time.Duration{"joining": joins, "coming back": returns} {
		for _, d := range list {
			if d > limit {
				t.Errorf("%s took %s of %v, want %s", what, d, list, limit)
			}
		}
	}
	if peak -= before; peak > most {
		t.Errorf("%d MB more at the worst moment, want %d", peak>>20, most>>20)
	}
	if left > mostLeft {
		t.Errorf("%d MB more %s later, want %d; the last connection ended after %s", left>>20, time.Since(held), mostLeft>>20, ended)
	}
	if open := p.unauthenticated(); open > 0 {
		t.Errorf("%d connections are open still", open)
	}
	opened := c.end()
	lines := strings.Count(p.log.String(), "level=WARN") + strings.Count(p.log.String(), "level=ERROR")
	t.Logf("%d MB before, %d MB more at the worst moment, %d MB more %s later; %d connections came in %s, the last ended after %s, for %s of CPU; a host came back within %s and joined within %s (%d times); %d warnings",
		before>>20, peak>>20, left>>20, time.Since(held).Round(time.Second), opened, lasted.Round(time.Millisecond), ended.Round(time.Millisecond), computed, longest(returns), longest(joins), len(joins), lines)
}

func cartPair(t *testing.T) svid.Pair {
	t.Helper()
	pair, err := svid.ParsePair("shop/cart")
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func longest(list []time.Duration) time.Duration {
	var most time.Duration
	for _, d := range list {
		most = max(most, d)
	}
	return most.Round(time.Millisecond)
}
