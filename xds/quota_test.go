package xds

import (
	"context"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/xds/stream"
)

// streamsOf is how many streams a host has.
func (s *Server) streamsOf(host string) int {
	s.mu.Lock()
	q := s.quotas[host]
	s.mu.Unlock()
	if q == nil {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.streams
}

// A host that exceeds its rate is throttled until the quota allows its requests.
func TestQuotaThrottles(t *testing.T) {
	t.Parallel()
	now := time.Now()
	q := newHostQuota("a", quotaLimits{streams: 1, rate: 100})
	owes := func(what string, at time.Duration, requests float64, want time.Duration) {
		t.Helper()
		if got := q.reserve(now.Add(at), requests); got.Round(time.Millisecond) != want {
			t.Errorf("%s: throttled for %s, want %s", what, got, want)
		}
	}
	owes("ten seconds' worth", 0, 1000, 0)
	if q.idle(now) {
		t.Error("idle, though its quota is used up")
	}
	owes("more", 0, 200, 2*time.Second)
	owes("half a second later", 500*time.Millisecond, 0, 1500*time.Millisecond)
	owes("paid", 2*time.Second, 0, 0)
	if !q.idle(now.Add(12 * time.Second)) {
		t.Error("not idle, though its quota is full again")
	}
	owes("no more than ten seconds' worth is saved", time.Hour, 1100, time.Second)
	if _, ok := q.addStream(); !ok || q.idle(now.Add(2*time.Hour)) {
		t.Error("forgotten while it has a stream")
	}
	free := newHostQuota("", quotaLimits{streams: 1})
	if d := free.reserve(now, 1<<40); d != 0 {
		t.Errorf("throttled for %s without a limit", d)
	}
}

// A set that several streams share counts once, as long as one of them has it.
func TestMemoryTotalCountsSharedSetsOnce(t *testing.T) {
	t.Parallel()
	interner := new(stream.Interner)
	asks := func(names ...string) stream.Footprint {
		t.Helper()
		s := stream.NewServer(stream.ServerConfig{Interner: interner})
		if err := s.Request(time.Now(), &discovery.DeltaDiscoveryRequest{TypeUrl: string(stream.EndpointType), ResourceNamesSubscribe: names}); err != nil {
			t.Fatal(err)
		}
		return s.Footprint()
	}
	a, b, other := asks("x", "y"), asks("x", "y"), asks("x", "z")
	shared := a.Sets[0].Size()
	if shared == 0 || footprintSize(a) != footprintSize(b) || footprintSize(a) != a.Own+shared {
		t.Fatalf("%+v and %+v", a, b)
	}
	var l memoryTotal
	none := stream.Footprint{}
	for i, step := range []struct {
		before, now stream.Footprint
		want        int
	}{
		{none, a, footprintSize(a)},
		{none, b, 2*footprintSize(a) - shared},
		{a, a, 2*footprintSize(a) - shared},
		{a, other, footprintSize(a) + footprintSize(other)},
		{other, none, footprintSize(b)},
		{b, none, 0},
	} {
		if got := l.update(step.before, step.now); got != step.want {
			t.Errorf("step %d: %d bytes, want %d", i, got, step.want)
		}
	}
	if len(l.sets) != 0 {
		t.Errorf("%d sets are kept", len(l.sets))
	}
}

// If all hosts together exceed the limit, a host that uses much is rejected, not the one
// that comes last.
func TestMemoryLimitOfAllHosts(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	r := newRig(t, o, func(c *Config) {
		new(admissionByHost).install(t, o, c)
		c.MaxKept = 5 << 20
	})
	all := fleet(t, o, 3)
	keeps := func(host string, p *proxy, n int) deltaClient {
		t.Helper()
		ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "who", host))
		t.Cleanup(cancel)
		s, err := discovery.NewAggregatedDiscoveryServiceClient(r.dial).DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		node, err := p.node.Proto()
		if err != nil {
			t.Fatal(err)
		}
		for _, req := range []*discovery.DeltaDiscoveryRequest{
			{Node: node, TypeUrl: string(stream.ClusterType)},
			{TypeUrl: string(stream.EndpointType), ResourceNamesSubscribe: names(host, n, 1000)},
		} {
			if err := s.Send(req); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	keeps("much", all[0], 2000)
	eventually(t, "much is kept", func() bool { return r.server.kept.sum() > 4<<20 })
	keeps("little", all[1], 350)
	eventually(t, "a little more is kept", func() bool { return r.server.kept.sum() > r.server.cfg.MaxKept })
	s := keeps("more", all[2], 1200)
	var err error
	for err == nil {
		_, err = s.Recv()
	}
	st, _ := status.FromError(err)
	if st.Code() != codes.ResourceExhausted || !strings.Contains(st.Message(), "more than --max-mib (") || len(st.Details()) == 0 {
		t.Errorf("the host that uses more gets %v", err)
	}
	if r.server.streamsOf("little") != 1 || r.server.streamsOf("much") != 1 {
		t.Error("another host was rejected")
	}
}
