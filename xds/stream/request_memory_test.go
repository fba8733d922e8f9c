package stream

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
)

// heap is the size of the heap after garbage collection.
func heap() int64 {
	runtime.GC()
	runtime.GC() // for what the cleanups of the first one released
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// takeFromWire has a server take a request as it comes from the wire.
func takeFromWire(t *testing.T, s *Server, req *discovery.DeltaDiscoveryRequest) {
	t.Helper()
	b, err := proto.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeRequest(Frame{b}, s.Target(), DefaultMaxNames)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Take(start, got); err != nil {
		t.Fatal(err)
	}
}

// A short string that is kept must not keep a request of megabytes in memory.
func TestRequestTextIsNotRetained(t *testing.T) { //nolint:paralleltest // it measures the heap of the process
	const big, times = 1 << 20, 40
	text := strings.Repeat("no reason at all, ", big/18)
	all := make([]string, times)
	for i := range all {
		all[i] = fmt.Sprintf("c/%d=1", i)
	}
	var others []*Server // that are kept, too
	for name, hostile := range map[string]func(t *testing.T, s *Server){
		"refusal": func(t *testing.T, s *Server) {
			t.Helper()
			for range 3 * times {
				r := s.Next(start)
				if r == nil {
					return
				}
				req := &discovery.DeltaDiscoveryRequest{TypeUrl: string(r.TypeURL), ResponseNonce: r.Nonce}
				if len(r.Resources) > 0 {
					req.ErrorDetail = &rpcstatus.Status{Message: "Error adding/updating cluster(s) " + r.Resources[0].Name + ": " + text}
				}
				takeFromWire(t, s, req)
			}
		},
		"unknown-name": func(t *testing.T, s *Server) {
			t.Helper()
			for i := range times {
				// The name occurs nowhere else in the request.
				takeFromWire(t, s, &discovery.DeltaDiscoveryRequest{
					TypeUrl: string(EndpointType), ResourceNamesSubscribe: []string{fmt.Sprint("x", i)}, ResourceNamesUnsubscribe: padding(big),
				})
			}
		},
		"version": func(t *testing.T, s *Server) {
			t.Helper()
			for i := range 20 {
				takeFromWire(t, s, &discovery.DeltaDiscoveryRequest{
					TypeUrl: fmt.Sprint("t", i), InitialResourceVersions: map[string]string{"x": "1"}, ResourceNamesSubscribe: []string{"*"},
					ResourceNamesUnsubscribe: padding(big),
				})
			}
		},
		"virtual-host": func(t *testing.T, _ *Server) {
			t.Helper()
			for i := range 20 {
				o := NewServer(ServerConfig{})
				o.SetGeneration(gen(1, all...))
				takeFromWire(t, o, &discovery.DeltaDiscoveryRequest{
					TypeUrl: string(VirtualHostType), InitialResourceVersions: map[string]string{fmt.Sprint("x/", i): "1"}, ResourceNamesUnsubscribe: padding(big),
				})
				others = append(others, o)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // it measures the heap of the process
			s := NewServer(ServerConfig{})
			s.SetGeneration(gen(1, all...))
			takeFromWire(t, s, &discovery.DeltaDiscoveryRequest{TypeUrl: string(ClusterType)})
			before := heap()
			hostile(t, s)
			if kept := heap() - before; kept > 2*big {
				t.Errorf("%d bytes are kept of requests of %d", kept, big)
			}
			runtime.KeepAlive(s)
			runtime.KeepAlive(others)
		})
	}
}

// padding returns names of n bytes in total.
func padding(n int) []string {
	out := make([]string, n/4000)
	for i := range out {
		out[i] = strings.Repeat("p", 4000)
	}
	return out
}
