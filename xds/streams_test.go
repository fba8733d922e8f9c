package xds

import (
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/stream"
)

func TestStreamEnds(t *testing.T) {
	t.Parallel()
	pairs := []mesh.ServiceAccount{{Namespace: "shop", Name: "web"}}
	t.Run("before-the-certificate", func(t *testing.T) {
		t.Parallel()
		race.SkipLongWait(t)
		r := newRig(t, smallmesh.Shop(), nil)
		until := time.Now().Add(10 * time.Second)
		r.admission.peer.Store(&Peer{Host: "vm1", Pairs: pairs, Until: until})
		a := r.connect(t, node("web", "127.0.0.11"), nil)
		if st := r.synced(t, "web.shop"); !st.CertificateEnds.Equal(until) {
			t.Errorf("certificate ends %v", st.CertificateEnds)
		}
		if err := <-a.err; status.Code(err) != codes.Unavailable || !time.Now().Before(until) {
			t.Errorf("ended %v before the certificate with %v", time.Until(until), err)
		}
		eventually(t, "it is listed as gone", func() bool {
			p := r.server.Proxies()
			return len(p) == 1 && !p[0].Connected && !p[0].Left.IsZero()
		})
	})
	t.Run("revoked", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, smallmesh.Shop(), nil)
		revoked := make(chan struct{})
		r.admission.peer.Store(&Peer{Host: "vm1", Pairs: pairs, Revoked: revoked})
		a := r.connect(t, node("web", "127.0.0.11"), nil)
		r.synced(t, "web.shop")
		close(revoked)
		if err := <-a.err; status.Code(err) != codes.PermissionDenied {
			t.Errorf("%v", err)
		}
	})
	t.Run("revoked-while-not-reading", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, smallmesh.Big(3000), nil)
		revoked := make(chan struct{})
		r.admission.peer.Store(&Peer{Host: "vm1", Pairs: []mesh.ServiceAccount{{Namespace: "shop", Name: "s0000"}}, Revoked: revoked})
		n := node("s0000", "10.0.0.1")
		n.Interception = "REDIRECT"
		r.connectWith(t, n, stream.NewClient(stream.ClientConfig{Wants: map[stream.TypeURL]stream.Want{
			stream.ClusterType: {All: true}, stream.EndpointType: {Names: []string{"outbound|8080||s0001.mesh"}},
		}}), &agent{neverReads: true})
		eventually(t, "the buffers of the connection are full", func() bool {
			c := r.server.connections()
			return len(c) == 1 && c[0].unwritten.Load() > 0
		})
		close(revoked)
		eventually(t, "its stream is closed", func() bool { p := r.server.Proxies(); return len(p) == 1 && !p[0].Connected })
	})
}

func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	t.Run("too-much", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, smallmesh.Shop(), nil)
		a := r.connect(t, node("web", "127.0.0.11"), nil)
		r.synced(t, "web.shop")
		if err := a.stream.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: "t", ResourceNamesSubscribe: []string{strings.Repeat("x", 5000)}}); err != nil {
			t.Fatal(err)
		}
		if err := <-a.err; status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v", err)
		}
	})
	t.Run("full", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, smallmesh.Shop(), func(c *Config) { c.MaxStreams = 1 })
		r.connect(t, node("web", "127.0.0.11"), nil)
		r.synced(t, "web.shop")
		if err := <-r.connect(t, node("orders", "127.0.0.12"), nil).err; status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%v", err)
		}
	})
	t.Run("full-for-a-host", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, smallmesh.Shop(), func(c *Config) { c.MaxPerHost = 1 })
		r.connect(t, node("web", "127.0.0.11"), nil)
		r.synced(t, "web.shop")
		if err := <-r.connect(t, node("orders", "127.0.0.12"), nil).err; status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%v", err)
		}
	})
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, smallmesh.Shop(), func(c *Config) { c.NodeTimeout = 50 * time.Millisecond })
		s, err := discovery.NewAggregatedDiscoveryServiceClient(r.dial).DeltaAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%v", err)
		}
	})
	t.Run("silent-and-full-for-a-host", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, smallmesh.Shop(), func(c *Config) { c.MaxPerHost = 1; c.NodeTimeout = time.Minute })
		silent, err := discovery.NewAggregatedDiscoveryServiceClient(r.dial).DeltaAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is counted", func() bool {
			return r.server.streamsOf("vm1") == 1
		})
		if err := <-r.connect(t, node("web", "127.0.0.11"), nil).err; status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%v", err)
		}
		if err := silent.CloseSend(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is no longer counted", func() bool {
			return r.server.streamsOf("vm1") == 0
		})
	})
	t.Run("state-of-the-world", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, smallmesh.Shop(), nil)
		s, err := discovery.NewAggregatedDiscoveryServiceClient(r.dial).StreamAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "DELTA_GRPC") {
			t.Errorf("%v", err)
		}
	})
}
