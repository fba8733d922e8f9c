package envoy_test

import (
	"maps"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

const ordersWithMore = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 8080, name: http, protocol: HTTP}]
  endpoints:
  - {address: 10.0.0.1, serviceAccount: orders, labels: {app: orders, version: v1}}
  - {address: 10.0.0.2, serviceAccount: orders, labels: {app: orders, version: v2}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: orders, namespace: shop}
spec: {host: orders.shop.mesh, subsets: [{name: v1, labels: {version: v1}}]}
`

const (
	plainEndpoint = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders-old, namespace: shop}
spec:
  hosts: [orders.shop.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 8080, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.3, labels: {app: orders, version: v0}}]
`
	disabled = `---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: v1, namespace: shop}
spec: {selector: {matchLabels: {app: orders, version: v1}}, mtls: {mode: DISABLE}}
`
)

// marked says of each cluster's endpoints whether they are to be reached in
// plaintext. A cluster with such has a socket for them, others have none.
func marked(t *testing.T, manifests string) map[string]map[string]bool {
	t.Helper()
	all := buildAll(view.Build(snapshotOf(t, manifests, ""), proxyFile{Namespace: "shop", ServiceAccount: "web", IP: "10.9.9.9"}.proxy()))
	out, sockets := map[string]map[string]bool{}, map[string]bool{}
	for _, m := range messages(t, all, envoy.ClusterType) {
		if c, ok := m.(*clusterv3.Cluster); ok && c.GetType() == clusterv3.Cluster_EDS {
			sockets[c.GetName()] = len(c.GetTransportSocketMatches()) > 0
			if c.GetTransportSocket() == nil {
				t.Errorf("cluster %q has no TLS for endpoints that say nothing", c.GetName())
			}
		}
	}
	for _, m := range messages(t, all, envoy.EndpointType) {
		e, ok := m.(*endpointv3.ClusterLoadAssignment)
		if !ok {
			t.Fatalf("%T is no load assignment", m)
		}
		list, anyPlain := map[string]bool{}, false
		for _, l := range e.GetEndpoints() {
			for _, x := range l.GetLbEndpoints() {
				plain := x.GetMetadata().GetFilterMetadata()["envoy.transport_socket_match"].GetFields()["tlsMode"].GetStringValue() == "disabled"
				list[x.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()] = plain
				anyPlain = anyPlain || plain
			}
		}
		if sockets[e.GetClusterName()] != anyPlain {
			t.Errorf("cluster %q has a socket for plaintext: %v, and such endpoints: %v", e.GetClusterName(), !anyPlain, anyPlain)
		}
		out[e.GetClusterName()] = list
	}
	if len(out) != len(sockets) {
		t.Errorf("%d clusters, %d with endpoints", len(sockets), len(out))
	}
	return out
}

// TestPlaintextIsMarked has endpoints that take mTLS, one that has no identity
// for it, and one where a policy forbids it.
func TestPlaintextIsMarked(t *testing.T) {
	t.Parallel()
	const all, v1 = "outbound|8080||orders.shop.mesh", "outbound|8080|v1|orders.shop.mesh"
	for name, c := range map[string]struct {
		more string
		all  map[string]bool
		inV1 bool
	}{
		"none":        {all: map[string]bool{"10.0.0.1": false, "10.0.0.2": false}},
		"no_identity": {more: plainEndpoint, all: map[string]bool{"10.0.0.1": false, "10.0.0.2": false, "10.0.0.3": true}},
		"disabled":    {more: disabled, all: map[string]bool{"10.0.0.1": true, "10.0.0.2": false}, inV1: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := map[string]map[string]bool{all: c.all, v1: {"10.0.0.1": c.inV1}}
			got := marked(t, ordersWithMore+c.more)
			maps.DeleteFunc(got, func(k string, _ map[string]bool) bool { return k != all && k != v1 })
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("marked for plaintext (-want +got):\n%s", diff)
			}
		})
	}
}
