package peercred

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/envoytest"
)

const testHeader = "x-token"

// guardedServer serves gRPC's health service behind a guard.
func guardedServer(t *testing.T, change func(*limits), first ...grpc.ServerOption) (c Config, g *Guard, token string, log *envoytest.Log) {
	t.Helper()
	token, log = strings.Repeat("A", minToken), &envoytest.Log{}
	c = config(t)
	g, err := NewGuard(GuardConfig{Logger: slog.New(slog.NewTextHandler(log, nil)), Socket: c.Path, Header: testHeader, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&g.limits)
	}
	c.Guard = g
	l, err := Listen(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(append(first, g.ServerOptions()...)...)
	healthpb.RegisterHealthServer(s, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c, g, token, log
}

// envoy opens a stream as Envoy does, on a connection of its own.
func envoy(ctx context.Context, t *testing.T, c Config, token string) (grpc.ServerStreamingClient[healthpb.HealthCheckResponse], error) {
	t.Helper()
	cc, err := grpc.NewClient("unix:"+c.Path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, testHeader, token)
	}
	s, err := healthpb.NewHealthClient(cc).Watch(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	_, err = s.Recv()
	return s, err
}

// floodPath and floodSends configure a child process of this test that is another local
// process.
const floodPath, floodSends, crowdOf = "PEERCRED_TEST_CROWD", "PEERCRED_TEST_SAYS", 2000

// TestMain floods the socket if the environment says so.
func TestMain(m *testing.M) {
	path := os.Getenv(floodPath)
	if path == "" {
		os.Exit(m.Run())
	}
	for range crowdOf {
		go func() {
			for {
				floodOnce(path, os.Getenv(floodSends))
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
}

// floodOnce opens a connection, sends some bytes, and returns when it is closed.
func floodOnce(path, say string) {
	conn, err := net.DialTimeout("unix", path, envoytest.Attempt)
	if err != nil {
		<-time.After(10 * time.Millisecond) // the kernel's queue is full
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, say)
	_, _ = io.Copy(io.Discard, conn)
}

// TestIdleConnectionsDoNotBlockEnvoy: a process of the same user holds 2,000 connections that
// send nothing, or a part of a request without the token, and reopens them when they are
// closed. A connected Envoy stays connected, and another one connects soon, several times. 5 s
// are promised; the deadline has room for a busy machine.
func TestIdleConnectionsDoNotBlockEnvoy(t *testing.T) {
	t.Parallel()
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	for name, say := range map[string]string{"nothing": "", "preface": preface, "garbage": "GET / HTTP/1.1\r\n"} {
		t.Run(name, func(t *testing.T) {
			c, g, token, log := guardedServer(t, nil)
			first, err := envoy(t.Context(), t, c, token)
			if err != nil {
				t.Fatal(err)
			}
			crowd := exec.CommandContext(t.Context(), os.Args[0])
			crowd.Env = append(os.Environ(), floodPath+"="+c.Path, floodSends+"="+say)
			end, err := crowd.StdinPipe()
			if err == nil {
				err = crowd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = end.Close()
				_ = crowd.Wait() // however it ends
			}()
			envoytest.Eventually(t, envoytest.Patience, func() error {
				if n := g.Closed(); n < crowdOf && name != "garbage" { // those gRPC itself closes
					return fmt.Errorf("%d connections were closed", n)
				}
				return nil
			})
			for range 5 {
				connects(t, c, token)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := first.Recv()
				ended <- err
			}()
			select {
			case err := <-ended:
				t.Errorf("an Envoy that had shown the token was closed: %v", err)
			default:
			}
			if n := strings.Count(log.String(), "\n"); n > 2 {
				t.Errorf("%d lines: %s", n, log.String())
			}
		})
	}
}

// connects retries until it is accepted, as Envoy does.
func connects(t *testing.T, c Config, token string) {
	t.Helper()
	began := time.Now()
	soon, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	for {
		_, err := envoy(soon, t, c, token)
		if err == nil {
			t.Logf("connected within %s", time.Since(began))
			return
		}
		if soon.Err() != nil {
			t.Fatalf("an Envoy is kept out for %s: %v", time.Since(began), err)
		}
	}
}

// TestConnectionsWithoutTheTokenEnd: their time and bytes are limited, and rejected calls do
// not extend them. A connection that has shown the token is kept.
func TestConnectionsWithoutTheTokenEnd(t *testing.T) {
	t.Parallel()
	c, g, token, _ := guardedServer(t, func(l *limits) { l.timeout = 300 * time.Millisecond })
	good, err := envoy(t.Context(), t, c, token)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := envoy(t.Context(), t, c, ""); status.Code(err) != codes.PermissionDenied {
		t.Errorf("without the token: %v", err)
	}
	if read(t, c.Path) == "never" || g.Closed() == 0 { // it returns when it is closed
		t.Error("a silent connection stays")
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", c.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	n := 0
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, conn)
	}()
	_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	for frame := make([]byte, 9+1024); ; n += len(frame) { // frames of a type that nobody knows
		frame[1], frame[3] = 4, 0xee
		if _, err := conn.Write(frame); err != nil {
			break
		}
		if n > 16<<20 {
			t.Fatal("a connection without the token may send any number of bytes")
		}
	}
	<-ended
	cancelled := make(chan error, 1)
	go func() {
		_, err := good.Recv()
		cancelled <- err
	}()
	select {
	case err := <-cancelled:
		t.Errorf("a connection that has shown the token: %v", err)
	case <-time.After(time.Second):
	}
}

// TestLateCheckOfTheTokenIsInTime: a connection sends its token, and more bytes than allowed
// without one, before the call with the token is checked. Envoys do that on a busy machine.
func TestLateCheckOfTheTokenIsInTime(t *testing.T) {
	t.Parallel()
	looked, look := make(chan struct{}), make(chan struct{})
	accepted, once := make(chan *conn, 1), sync.Once{}
	c, g, token, log := guardedServer(t, func(l *limits) { l.bytes = 8 << 10 }, grpc.ChainUnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if p, ok := peer.FromContext(ctx); ok {
				if a, ok := p.Addr.(address); ok {
					once.Do(func() { accepted <- a.of })
				}
			}
			looked <- struct{}{}
			<-look
			return next(ctx, req)
		}))
	cc, err := grpc.NewClient("unix:"+c.Path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cc.Close() }()
	ctx := metadata.AppendToOutgoingContext(t.Context(), testHeader, token)
	answered := make(chan error, 20)
	call := func(i int) { // a few KiB of headers each
		_, err := healthpb.NewHealthClient(cc).Check(metadata.AppendToOutgoingContext(ctx, "padding", fmt.Sprint(i, strings.Repeat("x", 4<<10))), &healthpb.HealthCheckRequest{})
		answered <- err
	}
	go call(0)
	<-looked // so all of the first call is there; it is checked when the others were sent
	for i := 1; i < cap(answered); i++ {
		go call(i)
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if unread := <-accepted; unread.unread.Load() > 0 {
			accepted <- unread
			return errors.New("it may send more")
		}
		return nil
	})
	go func() {
		for range cap(answered) - 1 {
			select {
			case <-looked:
			case <-t.Context().Done():
			}
		}
	}()
	close(look)
	for range cap(answered) {
		if err := <-answered; err != nil {
			t.Errorf("a call with the token: %v", err)
		}
	}
	if n := g.Closed(); n != 0 || log.String() != "" {
		t.Errorf("%d connections were closed: %s", n, log)
	}
}

// TestOldestIdleConnectionIsClosed: at the limit the oldest one is closed first.
func TestOldestIdleConnectionIsClosed(t *testing.T) {
	t.Parallel()
	c, g, token, _ := guardedServer(t, func(l *limits) { l.most = 4 })
	if _, err := envoy(t.Context(), t, c, token); err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	for range 12 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", c.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	for i, conn := range conns[:8] {
		began := time.Now()
		_, _ = io.Copy(io.Discard, conn)
		if i >= 4 && time.Since(began) > 5*time.Second {
			t.Errorf("connection %d was not closed for others", i)
		}
	}
	if n := g.Closed(); n != 8 {
		t.Errorf("%d connections were closed, want 8", n)
	}
}
