package limit

import (
	"context"
	"net"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/bench/fleet/internal/envoys"
)

// TestFanOut: every stream gets the first message and each later one, of the
// size that was asked for, and the fleet takes them for what an Envoy accepts.
func TestFanOut(t *testing.T) {
	t.Parallel()
	const streams, cold, size = 5, 300_000, 40_000
	s, err := New(cold)
	if err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := s.GRPC()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
	f := envoys.New(envoys.Config{
		Size: streams, Authority: "limit",
		Node: func(int) []byte {
			b, err := proto.Marshal(&corev3.Node{Id: "me"})
			if err != nil {
				t.Error(err)
			}
			return b
		},
		Dial: func(ctx context.Context, _ int) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", l.Addr().String())
		},
	})
	f.Start(t.Context())
	t.Cleanup(f.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if _, err := f.AwaitReady(ctx, streams, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	before := f.Totals()
	if n := before.Kinds["CDS"].Bytes; n < streams*cold*99/100 || n > streams*cold*101/100 {
		t.Errorf("%d bytes to %d streams", n, streams)
	}
	for _, marker := range []string{"r000001", "r000002"} {
		f.Arm(marker)
		at, err := s.Push(marker, size)
		if err != nil {
			t.Fatal(err)
		}
		times, err := f.AwaitProbe(ctx, streams)
		if err != nil || times.First < at.UnixNano() {
			t.Fatalf("%+v, %v", times, err)
		}
	}
	after := f.Totals()
	d := after.Kinds["CDS"].Minus(before.Kinds["CDS"])
	if d.Messages != 2*streams || d.Bytes < 2*streams*size*99/100 || d.Bytes > 2*streams*size*101/100 || after.Faults != 0 {
		t.Errorf("%+v", after)
	}
}
