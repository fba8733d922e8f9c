package health

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"
)

func TestListener(t *testing.T) {
	t.Parallel()
	for _, on := range []string{"127.0.0.1", "", "::1"} {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(on, "0"))
		if err != nil {
			t.Fatal(err)
		}
		s := newListener(on, port(t, l.Addr()))
		if s == nil {
			t.Fatal("the kernel cannot be asked")
		}
		if !s.listening() {
			t.Errorf("%s is not seen to listen", l.Addr())
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if s.listening() {
			t.Errorf("%s is still seen to listen", l.Addr())
		}
		s.close()
	}
	if newListener("localhost", 80) != nil {
		t.Error("a name was taken for an address")
	}
	var none *listener
	if none.listening() {
		t.Error("nothing says that somebody listens")
	}
	none.close()
}

// TestKilledApplicationIsNoticedBetweenProbes has a period that is longer than the test.
func TestKilledApplicationIsNoticedBetweenProbes(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	rec := &recorder{}
	h, err := New(Config{
		Logger: slog.New(slog.DiscardHandler), Envoy: &fakeEnvoy{}, Reporter: rec,
		Probe: Probe{Period: time.Hour, TCP: &TCPSocket{Port: port(t, l.Addr())}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	await := func(n int, want string) {
		t.Helper()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(2 * time.Minute); len(rec.list()) < n; <-tick.C {
			if time.Now().After(end) {
				t.Fatalf("reports: %q", rec.list())
			}
		}
		if got := rec.list()[n-1]; !strings.HasPrefix(got, want) {
			t.Errorf("report %d is %q", n, got)
		}
	}
	await(1, "true")
	at := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	await(2, "false")
	if l, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", at); err != nil {
		t.Fatal(err)
	}
	await(3, "true")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
