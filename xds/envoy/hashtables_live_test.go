package envoy_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// TestHashTablesAreThoseOfEnvoy: what is shown of a proxy's tables is what a real Envoy has in its rings: by minimum, by
// weights of endpoints, by the limit of a source that is bound to namespaces, by subsets and ports.
func TestHashTablesAreThoseOfEnvoy(t *testing.T) {
	t.Parallel()
	const service = `
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: NAME, namespace: shop}
spec:
  hosts: [NAME.shop.mesh]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: http-2, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1, weight: 1, labels: {v: a}}, {address: 10.0.0.2, weight: WEIGHT, labels: {v: a}}, {address: 10.0.0.3, labels: {v: b}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: NAME, namespace: shop}
spec: {host: NAME.shop.mesh, trafficPolicy: {loadBalancer: {consistentHash: {useSourceIp: true, HASH}}}, subsets: [{name: a, labels: {v: a}}, {name: none, labels: {v: c}}]}
`
	scenes := []struct{ name, weight, hash string }{
		{"even", "1", "ringHash: {minimumRingSize: 5000}"}, {"default", "3", "ringHash: {}"}, {"uneven", "700", "ringHash: {minimumRingSize: 2000}"}, {"steep", "100000", "minimumRingSize: 1024"},
	}
	var tenant strings.Builder
	for _, s := range scenes {
		tenant.WriteString(strings.NewReplacer("NAME", s.name, "WEIGHT", s.weight, "HASH", s.hash).Replace(service))
	}
	port := strconv.Itoa(envoytest.FreePorts(t, 1)[0])
	for _, bound := range []bool{true, false} {
		b := &mesh.Binding{Namespaces: []string{"shop"}, Hosts: []mesh.Hostname{"*.shop.mesh"}}
		if !bound {
			b = nil
		}
		s := tenantSnapshot(t, strings.ReplaceAll(tenantGateways, "PORT", port), tenant.String(), b)
		v := view.Build(s, edgeProxy().proxy())
		sum := v.TableLayers().HashTables()
		var node map[string]any
		fatalIf(t, json.Unmarshal(bootstrap(t, buildAll(v)), &node), "reading own JSON")
		node["admin"] = json.RawMessage(envoytest.AdminJSON)
		body, err := json.Marshal(node)
		fatalIf(t, err, "marshaling bootstrap")
		e := envoytest.Start(t, envoytest.Config{Bootstrap: body})
		rings, entries, largest := 0, uint64(0), uint64(0)
		for line := range strings.SplitSeq(e.Admin(t, "/stats?filter=ring_hash_lb.size"), "\n") {
			_, value, found := strings.Cut(line, ": ")
			n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			if !found || err != nil || n == 0 {
				continue
			}
			rings, entries, largest = rings+1, entries+n, max(largest, n)
		}
		if rings != 16 || sum.Clusters != rings || sum.Entries != entries || sum.LargestEntries != largest || sum.Largest.Host != map[bool]mesh.Hostname{true: "even.shop.mesh", false: "steep.shop.mesh"}[bound] || len(sum.LargestOrigins) < 2 {
			t.Errorf("bound %v: Envoy has %d rings with %d entries, the largest with %d; shown is %+v", bound, rings, entries, largest, sum)
		}
		if bound != (largest < 65_537) { // weights alone make no more for a tenant
			t.Errorf("bound %v: the largest ring has %d entries", bound, largest)
		}
		e.Kill()
	}
}
