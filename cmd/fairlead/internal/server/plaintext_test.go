package server

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
	securityapi "istio.io/api/security/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

const plaintextMesh = `apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: one, namespace: shop}
spec: {address: 10.1.2.3, serviceAccount: cart, labels: {app: cart}}
---
`

// TestPlaintext: whoever is on the machine may look at a workload's
// configuration, and can do nothing else.
func TestPlaintext(t *testing.T) {
	t.Parallel()
	cfg := config(t, treeOf(t, map[string]string{"a.yaml": plaintextMesh}))
	cfg.PlaintextAddress = "127.0.0.1:0"
	r := start(t, cfg)
	conn, err := grpc.NewClient(r.plaintext.listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })

	known := open(t, conn, "10.1.2.3", "cart")
	answer, err := known.Recv()
	if err != nil || len(answer.GetResources()) == 0 {
		t.Fatalf("resources %d, err %v", len(answer.GetResources()), err)
	}
	r.plaintext.listener.mu.Lock()
	for _, c := range r.plaintext.listener.by {
		select {
		case <-c.Opened():
		default:
			t.Error("a stream was admitted, and not all of its connection is read")
		}
	}
	r.plaintext.listener.mu.Unlock()
	report := &discovery.DeltaDiscoveryRequest{TypeUrl: bootstrap.HealthType, ErrorDetail: &status.Status{Code: 1, Message: "down"}}
	ack := &discovery.DeltaDiscoveryRequest{TypeUrl: string(stream.ClusterType), ResponseNonce: answer.GetNonce()}
	for _, req := range []*discovery.DeltaDiscoveryRequest{report, ack} {
		if err := known.Send(req); err != nil {
			t.Fatal(err)
		}
	}
	r.eventually(func() error { // the ACK came after the report
		for _, p := range r.xds.Proxies() {
			for _, ty := range p.Types {
				if ty.Type == stream.ClusterType && ty.AckedGeneration > 0 {
					return nil
				}
			}
		}
		return fmt.Errorf("no ACK: %+v", r.xds.Proxies())
	})
	if list := r.registry.Snapshot().WorkloadsAt("10.1.2.3"); len(list) != 1 || list[0].Health == mesh.Unhealthy {
		t.Errorf("a report without an identity was accepted: %+v", list)
	}
	if s := r.agents.Status(); s.Connected != 0 {
		t.Errorf("a stream without an identity is leased: %+v", s)
	}

	for name, node := range map[string][2]string{"address": {"10.9.9.9", "cart"}, "account": {"10.1.2.3", "other"}} {
		if _, err := open(t, conn, node[0], node[1]).Recv(); grpcstatus.Code(err) != codes.PermissionDenied {
			t.Errorf("another %s: %v", name, err)
		}
	}
	_, err = securityapi.NewIstioCertificateServiceClient(conn).CreateCertificate(t.Context(), &securityapi.IstioCertificateRequest{})
	if grpcstatus.Code(err) != codes.Unimplemented {
		t.Errorf("asking for a certificate: %v", err)
	}

	var pushes []Push
	if err := r.client.Do(t.Context(), http.MethodGet, "/debug/pushes", nil, &pushes); err != nil || len(pushes) == 0 || pushes[0].Generation != 1 {
		t.Errorf("pushes %+v, err %v", pushes, err)
	}
}

// open begins a stream of a sidecar in namespace shop.
func open(t *testing.T, conn *grpc.ClientConn, address, account string) grpc.BidiStreamingClient[discovery.DeltaDiscoveryRequest, discovery.DeltaDiscoveryResponse] {
	t.Helper()
	s, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(nodeRequest(t, address, account)); err != nil && !strings.Contains(err.Error(), "EOF") {
		t.Fatal(err)
	}
	return s
}

// nodeRequest is the first request of a sidecar in namespace shop.
func nodeRequest(t *testing.T, address, account string) *discovery.DeltaDiscoveryRequest {
	t.Helper()
	node, err := (&bootstrap.Node{
		Type: bootstrap.TypeSidecar, Name: "one", Namespace: "shop", Domain: "cluster.local",
		Address: netip.MustParseAddr(address), ServiceAccount: account,
	}).Proto()
	if err != nil {
		t.Fatal(err)
	}
	return &discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: string(stream.ClusterType)}
}
