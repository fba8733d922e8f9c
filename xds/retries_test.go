package xds

import (
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// TestRelaysTryByThemselves: an agent that tries again what its Envoy rejected is not sent it again;
// an earlier one, or an Envoy without an agent, is.
func TestRelaysTryByThemselves(t *testing.T) {
	t.Parallel()
	for name, feature := range map[string]string{"this_release": bootstrap.FeatureRetries, "earlier": bootstrap.FeatureVirtualHosts} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, smallmesh.Shop(), nil)
			p, err := node("web", "127.0.0.11").Proto()
			if err != nil {
				t.Fatal(err)
			}
			p.ClientFeatures = []string{feature}
			g, err := discovery.NewAggregatedDiscoveryServiceClient(r.dial).DeltaAggregatedResources(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Send(&discovery.DeltaDiscoveryRequest{Node: p, TypeUrl: string(stream.ClusterType)}); err != nil {
				t.Fatal(err)
			}
			if _, err := g.Recv(); err != nil {
				t.Fatal(err)
			}
			want := stream.DefaultRetry()
			want.None = feature == bootstrap.FeatureRetries
			if all := r.server.connections(); len(all) != 1 || all[0].retry != want {
				t.Errorf("%d streams, retries %+v", len(all), all[0].retry)
			}
		})
	}
}
