package stream

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// fleet connects n streams with equal subscriptions, and sends them a number of clusters.
func fleet(tb testing.TB, n, clusters int) ([]*Server, *Generation) {
	tb.Helper()
	var of [2][]*Resource
	var names []string
	for i := range clusters {
		name := fmt.Sprintf("outbound|8080||service-%d.namespace.svc.cluster.local", i)
		of[0] = append(of[0], NewResource(ClusterType, Resource{Name: name, Version: "1", Body: make([]byte, 500)}))
		of[1] = append(of[1], NewResource(EndpointType, Resource{Name: name, Version: "1", Body: make([]byte, 200)}))
		names = append(names, name)
	}
	slices.Sort(names)
	g := &Generation{Number: 1, Layers: []*Layer{
		{Types: map[TypeURL]*Set{ClusterType: NewSet(of[0])}}, {Types: map[TypeURL]*Set{EndpointType: NewSet(of[1])}},
	}}
	in := new(Interner)
	servers := make([]*Server, n)
	for i := range servers {
		s := NewServer(ServerConfig{Interner: in})
		s.SetGeneration(g)
		for _, r := range []*discovery.DeltaDiscoveryRequest{
			{TypeUrl: string(ClusterType)}, {TypeUrl: string(EndpointType), ResourceNamesSubscribe: names},
		} {
			if err := s.Request(start, r); err != nil {
				tb.Fatal(err)
			}
		}
		drain(tb, s)
		servers[i] = s
	}
	return servers, g
}

// drain sends and ACKs everything, and returns the number of resources.
func drain(tb testing.TB, s *Server) int {
	tb.Helper()
	n := 0
	for r := s.Next(start); r != nil; r = s.Next(start) {
		n += len(r.Resources)
		if err := s.Request(start, &discovery.DeltaDiscoveryRequest{TypeUrl: string(r.TypeURL), ResponseNonce: r.Nonce}); err != nil {
			tb.Fatal(err)
		}
	}
	s.Events()
	return n
}

// One of a thousand ClusterLoadAssignments changes, for a thousand streams with equal
// subscriptions. The cost follows the change, and the delta is computed once.
func BenchmarkPushOneEndpoint(b *testing.B) {
	const streams, clusters = 1000, 1000
	servers, g := fleet(b, streams, clusters)
	b.ReportAllocs()
	for b.Loop() {
		number := g.Number + 1
		changed := NewResource(EndpointType, Resource{
			Name: "outbound|8080||service-7.namespace.svc.cluster.local", Version: strconv.FormatUint(number, 10), Body: make([]byte, 200),
		})
		next := &Generation{Number: number, Layers: []*Layer{
			g.Layers[0], {Types: map[TypeURL]*Set{EndpointType: g.Layers[1].Types[EndpointType].With([]*Resource{changed}, nil)}},
		}}
		for _, s := range servers {
			s.SetGeneration(next)
			if n := drain(b, s); n != 1 {
				b.Fatalf("%d resources sent", n)
			}
		}
		g = next
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*streams), "ns/stream")
}

// A stream that has converged takes the same memory however much it was sent.
func TestConvergedStreamIsSmall(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	keep, _ := fleet(t, 1, 2000)
	before := heap()
	servers, _ := fleet(t, 100, 2000)
	each := (int64(heap()) - int64(before)) / 100
	t.Logf("%d bytes a stream, the generation of 2000 clusters shared out among 100", each)
	// The generation itself is about 2 MB, so 20 kB a stream; maps of names and
	// versions would be 400 kB more.
	if each > 60<<10 {
		t.Errorf("%d bytes a stream", each)
	}
	runtime.KeepAlive(keep)
	runtime.KeepAlive(servers)
}
