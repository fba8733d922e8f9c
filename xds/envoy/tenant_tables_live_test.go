package envoy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// TestTablesOfATenantDoNotFillAGateway: whatever a tenant writes for consistentHash, a shared gateway keeps within
// 1.5 times of the memory that it has without it.
func TestTablesOfATenantDoNotFillAGateway(t *testing.T) {
	t.Parallel()
	const service = `
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: s%[1]d, namespace: shop}
spec: {hosts: [s%[1]d.shop.mesh], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.1, weight: 1}, {address: 10.0.0.2, weight: %[2]d}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: s%[1]d, namespace: shop}
spec: {hosts: [s%[1]d.shop.mesh], gateways: [edge/shared], http: [{route: [{destination: {host: s%[1]d.shop.mesh, port: {number: 80}}}]}]}
`
	const rule = `
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: s%[1]d, namespace: shop}
spec: {host: s%[1]d.shop.mesh, trafficPolicy: {loadBalancer: {%[2]s}}%[3]s}
`
	var subsets []string
	for i := range 14 {
		subsets = append(subsets, fmt.Sprintf("{name: v%d}", i))
	}
	attacks := map[string]struct {
		weight      int
		size, extra string
	}{
		"largest_ring": {1, ", ringHash: {minimumRingSize: 8388608}", ""},
		"old_field":    {1, ", minimumRingSize: 8388608", ""},
		"one_within":   {1, ", ringHash: {minimumRingSize: 65537}", ", subsets: [" + strings.Join(subsets, ", ") + "]"}, // and eleven over the limit
		"weights":      {8_000_000, "", ""},                                                                             // Envoy makes a ring of 8 million entries of a minimum of 1,024
	}
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			envoytest.BinaryVersion(t, version) // or skip, before anything runs
			memory := func(weight int, rules func(i int) string) int {
				var tenant strings.Builder
				for i := range 12 {
					_, _ = fmt.Fprintf(&tenant, service, i, weight)
					tenant.WriteString(rules(i))
				}
				port := strconv.Itoa(envoytest.FreePorts(t, 1)[0])
				s := tenantSnapshot(t, strings.ReplaceAll(tenantGateways, "PORT", port), tenant.String(), &mesh.Binding{Namespaces: []string{"shop"}, Hosts: []mesh.Hostname{"*.shop.mesh"}})
				var node map[string]any
				fatalIf(t, json.Unmarshal(bootstrap(t, buildAll(view.Build(s, edgeProxy().proxy()))), &node), "reading own JSON")
				node["admin"] = json.RawMessage(envoytest.AdminJSON)
				body, err := json.Marshal(node)
				fatalIf(t, err, "marshaling bootstrap")
				e := envoytest.Start(t, envoytest.Config{Bootstrap: body, Version: version})
				status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.PID()))
				fatalIf(t, err, "reading the memory of Envoy")
				_, rest, _ := strings.Cut(string(status), "VmRSS:")
				var kib int
				_, err = fmt.Sscan(rest, &kib)
				fatalIf(t, err, "reading the memory of Envoy")
				if clusters := e.Stat(t, "cluster_manager.active_clusters"); clusters < 12 {
					t.Fatalf("the gateway has %d clusters", clusters)
				}
				e.NoRejections(t)
				e.Kill()
				return kib >> 10
			}
			for name, a := range attacks {
				before := memory(a.weight, func(i int) string { return fmt.Sprintf(rule, i, "simple: RANDOM", a.extra) })
				after := memory(a.weight, func(i int) string {
					return fmt.Sprintf(rule, i, "consistentHash: {useSourceIp: true"+a.size+"}", a.extra)
				})
				t.Logf("%s: %d MB, and %d MB before", name, after, before)
				if after*2 > before*3 {
					t.Errorf("%s: the gateway has %d MB, and %d MB without the rules", name, after, before)
				}
			}
		})
	}
}
