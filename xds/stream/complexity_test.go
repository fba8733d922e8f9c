package stream

import (
	"strconv"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// inTime fails if something takes minutes instead of a second.
func inTime(t *testing.T, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Minute): // 10^10 steps take longer, on any machine
		t.Fatal("it takes quadratic time")
	}
}

// A peer lists virtual hosts of many route configurations, and unsubscribes from many.
func TestUnsubscribingManyRouteConfigurationsIsLinear(t *testing.T) {
	t.Parallel()
	const n = 100_000
	versions, names := map[string]string{}, make([]string, n)
	for i := range n {
		names[i] = strconv.Itoa(i)
		versions["t"+names[i]+"/x"] = "1"
	}
	s := NewServer(ServerConfig{})
	s.SetGeneration(gen(1, "c/a=1"))
	inTime(t, func() {
		for _, r := range []*discovery.DeltaDiscoveryRequest{
			{TypeUrl: string(VirtualHostType), InitialResourceVersions: versions},
			{TypeUrl: string(RouteType), ResourceNamesSubscribe: []string{"x"}, ResourceNamesUnsubscribe: names},
		} {
			if err := s.Request(start, r); err != nil {
				t.Error(err)
			}
		}
	})
}

// A peer lists many virtual hosts of a route configuration, and NACKs their removal.
func TestNackOfManyRemovedHostsIsLinear(t *testing.T) {
	t.Parallel()
	const n = 100_000
	versions := map[string]string{}
	for i := range n {
		versions["x/"+strconv.Itoa(i)] = "1"
	}
	s := NewServer(ServerConfig{})
	s.SetGeneration(gen(1, "R/x=1", "v/x/a=1", "v/x/b=1"))
	inTime(t, func() {
		for _, r := range []*discovery.DeltaDiscoveryRequest{
			{TypeUrl: string(VirtualHostType), InitialResourceVersions: versions},
			{TypeUrl: string(RouteType), ResourceNamesSubscribe: []string{"x"}},
		} {
			if err := s.Request(start, r); err != nil {
				t.Error(err)
			}
		}
		for range 5 {
			r := s.Next(start)
			if r == nil {
				return
			}
			req := &discovery.DeltaDiscoveryRequest{TypeUrl: string(r.TypeURL), ResponseNonce: r.Nonce}
			if r.TypeURL == VirtualHostType {
				req.ErrorDetail = &rpcstatus.Status{Message: "no"}
			}
			if err := s.Request(start, req); err != nil {
				t.Error(err)
			}
		}
	})
}
