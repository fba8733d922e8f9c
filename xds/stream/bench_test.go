package stream

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// fleet connects n streams of one class, with a number of clusters, and brings
// them into step.
func fleet(tb testing.TB, n, clusters int) ([]*Server, *Generation) {
	tb.Helper()
	g := &Generation{Number: 1, Types: map[TypeURL]map[string]Resource{ClusterType: {}, EndpointType: {}}}
	for i := range clusters {
		name := fmt.Sprintf("outbound|8080||service-%d.namespace.svc.cluster.local", i)
		g.Types[ClusterType][name] = Resource{Version: "1", Body: make([]byte, 500)}
		g.Types[EndpointType][name] = Resource{Version: "1", Body: make([]byte, 200)}
	}
	names := slices.Sorted(maps.Keys(g.Types[EndpointType]))
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

// drain sends and ACKs everything, and gives how many resources that were.
func drain(tb testing.TB, s *Server) int {
	tb.Helper()
	n := 0
	for r := s.Next(start); r != nil; r = s.Next(start) {
		n += len(r.GetResources())
		if err := s.Request(start, &discovery.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}); err != nil {
			tb.Fatal(err)
		}
	}
	s.Events()
	return n
}

// One endpoint set of a thousand changes, for a thousand streams of one class:
// the cost follows the change, and the difference is found once.
func BenchmarkPushOneEndpoint(b *testing.B) {
	const streams, clusters = 1000, 1000
	servers, g := fleet(b, streams, clusters)
	b.ReportAllocs()
	for b.Loop() {
		next := &Generation{Number: g.Number + 1, Types: maps.Clone(g.Types)}
		next.Types[EndpointType] = maps.Clone(g.Types[EndpointType])
		next.Types[EndpointType]["outbound|8080||service-7.namespace.svc.cluster.local"] = Resource{Version: strconv.FormatUint(next.Number, 10), Body: make([]byte, 200)}
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

// A stream in step costs the same however much it was sent.
func TestStreamInStepIsSmall(t *testing.T) {
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
