package wire

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
)

// clientVariable makes the test's binary the client of BenchmarkTransport:
// ADDRESS STREAMS TLS.
const clientVariable = "FAIRLEAD_WIRE_CLIENT"

// TestMain runs the client, if the process is started as one.
func TestMain(m *testing.M) {
	if how := os.Getenv(clientVariable); how != "" {
		if err := client(how); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// raw is a client's codec: it counts and drops bytes.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	b, _ := v.([]byte)
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	n, _ := v.(*int)
	*n = data.Len()
	return nil
}

func desc() *grpc.StreamDesc {
	return &grpc.StreamDesc{StreamName: "S", ServerStreams: true, ClientStreams: true}
}

// client opens the streams, a connection each, and answers every message with one
// small one.
func client(how string) error {
	var (
		address string
		n       int
		secure  bool
	)
	if _, err := fmt.Sscan(how, &address, &n, &secure); err != nil {
		return err
	}
	creds := insecure.NewCredentials()
	if secure {
		creds = credentials.NewTLS(clientTLS())
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // the parent closes our input when it is done
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			cc, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds),
				grpc.WithInitialWindowSize(16<<20), grpc.WithInitialConnWindowSize(24<<20))
			if err != nil {
				panic(err)
			}
			defer func() { _ = cc.Close() }()
			s, err := cc.NewStream(ctx, desc(), "/t.T/S", grpc.ForceCodecV2(raw{}), grpc.MaxCallRecvMsgSize(64<<20))
			if err != nil {
				return
			}
			size := 0
			for s.SendMsg([]byte{8, 1}) == nil && s.RecvMsg(&size) == nil {
			}
		})
	}
	wg.Wait()
	return nil
}

// message is a message in buffers.
type message [][]byte

func (m message) AppendBuffers(dst [][]byte) [][]byte { return append(dst, m...) }

// split splits a message of a size into buffers: separate in memory, or adjacent.
func split(size, piece int) message {
	whole := make([]byte, size)
	var m message
	for len(whole) > 0 {
		n := min(piece, len(whole))
		m = append(m, slices.Clone(whole[:n]))
		whole = whole[n:]
	}
	return m
}

// fan is a server that sends one message to all streams on request.
type fan struct {
	mu      sync.Mutex // guards streams
	streams []chan message
	opened  chan struct{}
	got     sync.WaitGroup
}

func (f *fan) handle(_ any, s grpc.ServerStream) error {
	in := make(chan message, 1)
	n := 0
	if err := s.RecvMsg(&n); err != nil {
		return err
	}
	f.mu.Lock()
	f.streams = append(f.streams, in)
	f.mu.Unlock()
	f.opened <- struct{}{}
	for {
		select {
		case <-s.Context().Done():
			return nil
		case m := <-in:
			if err := s.SendMsg(m); err != nil {
				return err
			}
			if err := s.RecvMsg(&n); err != nil {
				return err
			}
			f.got.Done()
		}
	}
}

func (f *fan) push(m message) {
	f.got.Add(len(f.streams))
	for _, s := range f.streams {
		s <- m
	}
	f.got.Wait()
}

// serverCodec is Codec, except that requests are counted.
type serverCodec struct{ codec }

func (serverCodec) Unmarshal(data mem.BufferSlice, v any) error { return raw{}.Unmarshal(data, v) }

func newFan(b *testing.B, streams int, secure bool, opts ...grpc.ServerOption) *fan {
	b.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	f := &fan{opened: make(chan struct{}, streams)}
	if secure {
		opts = append(opts, grpc.Creds(credentials.NewTLS(serverTLS(b))))
	}
	g := grpc.NewServer(append(opts, grpc.ForceServerCodecV2(serverCodec{codec{empty: new([]byte)}}))...)
	g.RegisterService(&grpc.ServiceDesc{ServiceName: "t.T", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "S", Handler: f.handle, ServerStreams: true, ClientStreams: true,
	}}}, nil)
	go func() { _ = g.Serve(l) }()
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %v", clientVariable, l.Addr(), streams, secure))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		g.Stop()
		_ = cmd.Wait()
	})
	for range streams {
		<-f.opened
	}
	return f
}

func cpu() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// held is the memory in use after garbage collection.
func held() int {
	runtime.GC()
	runtime.GC() // pools are emptied in two
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}

// BenchmarkTransport sends one message to 200 streams, each a connection to another
// process, with one option differing from ServerOptions at a time. It measures the CPU
// time of the server, and the memory of an idle stream.
func BenchmarkTransport(b *testing.B) {
	const streams = 200
	for _, o := range []struct {
		name string
		opts []grpc.ServerOption
	}{
		{"defaults", []grpc.ServerOption{}},
		{"chosen", ServerOptions()},
		{"write-0", append(ServerOptions(), grpc.WriteBufferSize(0))},
		{"write-64K", append(ServerOptions(), grpc.WriteBufferSize(64<<10))},
		{"write-128K", append(ServerOptions(), grpc.WriteBufferSize(128<<10))},
		{"read-32K", append(ServerOptions(), grpc.ReadBufferSize(32<<10))},
		{"workers", append(ServerOptions(), grpc.NumStreamWorkers(8))},
		{"windows-64K", append(ServerOptions(), grpc.StaticStreamWindowSize(64<<10), grpc.StaticConnWindowSize(64<<10))},
	} {
		for _, secure := range []bool{false, true} {
			name := o.name + "/plain"
			if secure {
				name = o.name + "/tls"
			}
			for _, m := range []struct {
				name string
				m    message
			}{
				{"5K", split(5<<10, 800)},
				{"560K-one", split(560<<10, 560<<10)},
				{"560K-apart", split(560<<10, 800)},
				{"560K-frames", split(560<<10, 16<<10)},
			} {
				b.Run(name+"/"+m.name, func(b *testing.B) {
					before := held()
					f := newFan(b, streams, secure, o.opts...)
					f.push(m.m)
					rest := held() - before
					c := cpu()
					b.ReportAllocs()
					for b.Loop() {
						f.push(m.m)
					}
					b.ReportMetric(float64((cpu()-c).Microseconds())/float64(b.N)/streams, "cpu-us/stream")
					b.ReportMetric(float64(rest)/streams/1024, "KiB/stream")
				})
			}
		}
	}
}
