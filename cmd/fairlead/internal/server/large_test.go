package server

import (
	"fmt"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fairlead/fairlead/xds/stream"
)

// A host that has a very large mesh on its disk comes back with all of it: two
// clusters of 40,000 services.
func TestLargeListComesBack(t *testing.T) {
	t.Parallel()
	cfg := config(t, treeOf(t, map[string]string{"a.yaml": plaintextMesh}))
	cfg.PlaintextAddress = "127.0.0.1:0"
	r := start(t, cfg)
	conn, err := grpc.NewClient(r.plaintext.listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20))) // as a relay does
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s := open(t, conn, "10.1.2.3", "cart")
	versions := map[string]string{}
	for i := range 80_000 {
		versions[fmt.Sprintf("outbound|8080|v%d|service-with-a-long-name-%06d.some-team.mesh.example.com", i%2, i)] = "0123456789abcdef"
	}
	req := &discovery.DeltaDiscoveryRequest{TypeUrl: string(stream.EndpointType), ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: versions}
	if err := s.Send(req); err != nil {
		t.Fatal(err)
	}
	for removed := 0; removed < len(versions); {
		resp, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if resp.GetTypeUrl() == string(stream.EndpointType) {
			removed += len(resp.GetRemovedResources())
		}
		if err := s.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce()}); err != nil {
			t.Fatal(err)
		}
	}
}
