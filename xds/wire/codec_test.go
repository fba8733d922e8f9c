package wire

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

func TestBuffersAreNotCopied(t *testing.T) {
	t.Parallel()
	a, b := []byte("one"), []byte("two")
	data, err := Codec().Marshal(message{a, nil, b})
	if err != nil {
		t.Fatal(err)
	}
	if len(data) != 2 || &data[0].ReadOnlyData()[0] != &a[0] || &data[1].ReadOnlyData()[0] != &b[0] {
		t.Errorf("%d buffers, or copies", len(data))
	}
	data.Ref()
	data.Free()
	data.Free()
	if got := data.Materialize(); !bytes.Equal(got, []byte("onetwo")) {
		t.Errorf("%q", got)
	}
}

func TestOtherMessagesAreEncoded(t *testing.T) {
	t.Parallel()
	want := &discovery.DeltaDiscoveryResponse{TypeUrl: "t", Nonce: "1"}
	data, err := Codec().Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	body, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data.Materialize(), body) {
		t.Error("other bytes than the usual ones")
	}
	got := &discovery.DeltaDiscoveryResponse{}
	if err := Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(body)}, got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Error(d)
	}
	if _, err := Codec().Marshal("text"); err == nil {
		t.Error("what is no message is taken")
	}
	if Codec().Name() != "proto" {
		t.Errorf("it calls itself %q", Codec().Name())
	}
}

// followed is a message that records when it was written.
type followed struct {
	message
	written chan struct{}
	steps   *atomic.Int32
}

func (f followed) Written() { f.written <- struct{}{} }

func (f followed) Progress() { f.steps.Add(1) }

// Progress signals neither change a message nor copy it, however it is split.
func TestProgressSignals(t *testing.T) {
	t.Parallel()
	for _, m := range []message{split(1<<20, 800), split(1<<20, 1<<20), split(1<<20, progressStep), split(1<<20+1, progressStep/2), split(progressStep, progressStep), {}} {
		f := followed{m, make(chan struct{}, 1), new(atomic.Int32)}
		data, err := Codec().Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Join(m, nil)
		if got := data.Materialize(); !bytes.Equal(got, want) {
			t.Errorf("%d bytes became %d", len(want), len(got))
		}
		if len(f.written) != 0 || f.steps.Load() != 0 {
			t.Error("written before it was freed")
		}
		data.Free()
		if n := max(0, len(want)-1) / progressStep; len(f.written) != 1 || int(f.steps.Load()) != n {
			t.Errorf("%d bytes: %d marks, written %d times", len(want), f.steps.Load(), len(f.written))
		}
	}
}

// A message counts as written when the connection has it, not when Send returns.
func TestWrittenSignal(t *testing.T) {
	t.Parallel()
	l := bufconn.Listen(1 << 10)
	m := followed{split(1<<20, 800), make(chan struct{}, 2), new(atomic.Int32)}
	sent := make(chan struct{})
	g := grpc.NewServer(ServerOptions()...)
	g.RegisterService(&grpc.ServiceDesc{ServiceName: "t.T", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "S", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			err := s.SendMsg(m)
			close(sent)
			<-s.Context().Done()
			return err
		},
	}}}, nil)
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Serve(l) })
	defer wg.Wait()
	defer g.Stop()
	cc, err := grpc.NewClient("passthrough:///t", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cc.Close() }()
	s, err := cc.NewStream(t.Context(), desc(), "/t.T/S", grpc.ForceCodecV2(raw{}))
	if err != nil {
		t.Fatal(err)
	}
	<-sent
	if len(m.written) > 0 || m.steps.Load() > 1 {
		t.Fatal("written, though the peer has room for a part of it only")
	}
	size := 0
	if err := s.RecvMsg(&size); err != nil || size != 1<<20 {
		t.Fatalf("%d bytes, %v", size, err)
	}
	<-m.written
	if n := m.steps.Load(); n != 1<<20/progressStep-1 {
		t.Errorf("progress %d times", n)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
}

// received is a message that stays encoded.
type received struct{ Frame }

func (r *received) SetRaw(f Frame) { r.Frame = f }

// The buffers of the transport are not copied, unless they are so small that they take more
// memory than what is in them.
func TestRawMessagesAreNotCopied(t *testing.T) {
	t.Parallel()
	for size, copied := range map[int]bool{16 << 10: false, minBuffer: false, 1: true} {
		put := 0
		var data mem.BufferSlice
		var want []byte
		for i := range 8 {
			b := bytes.Repeat([]byte{byte(i)}, size)
			want = append(want, b...)
			b = append(make([]byte, 0, pooledSize+size), b...)
			data = append(data, mem.NewBuffer(&b, countedPool{&put}))
		}
		var r received
		if err := Codec().Unmarshal(data, &r); err != nil {
			t.Fatal(err)
		}
		data.Free() // as gRPC does
		if got := len(r.Buffers()) == 1; got != copied || copied == (put == 0) {
			t.Errorf("buffers of %d bytes are copied: %t, %d freed", size, got, put)
		}
		if got := bytes.Join(r.Buffers(), nil); !bytes.Equal(got, want) || r.Len() != len(want) {
			t.Errorf("%d bytes became %d", len(want), len(got))
		}
		if r.Free(); put != 8 {
			t.Errorf("%d of 8 buffers may be used again", put)
		}
	}
}

// countedPool counts the buffers that come back.
type countedPool struct{ put *int }

func (p countedPool) Get(n int) *[]byte { b := make([]byte, n); return &b }

func (p countedPool) Put(*[]byte) { *p.put++ }
