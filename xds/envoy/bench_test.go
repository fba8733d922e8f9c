package envoy_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"golang.org/x/tools/txtar"
	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// BenchmarkBuild makes every resource of a proxy that sees many services: what a
// control plane pays once for all proxies that see the same.
func BenchmarkBuild(b *testing.B) {
	var manifests strings.Builder
	for i := range 500 {
		_, _ = fmt.Fprintf(&manifests, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: s%[1]d, namespace: shop}
spec:
  hosts: [s%[1]d.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints:
  - {address: 10.0.0.1, serviceAccount: a}
  - {address: 10.0.0.2, serviceAccount: a}
`, i)
	}
	v := view.Build(snapshotOf(b, manifests.String(), ""), proxyFile{Namespace: "shop", IP: "10.9.9.9"}.proxy())
	b.ReportAllocs()
	for b.Loop() {
		for p := range v.Parts() {
			envoy.Build(p)
		}
	}
}

// TestPartsAreShared builds from the same parts side by side, which the race
// detector watches, and expects the same bytes: a builder that wrote to its part
// would show.
func TestPartsAreShared(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"routes", "destinationrule", "redirect"} {
		a, err := txtar.ParseFile("testdata/" + name + ".txtar")
		fatalIf(t, err, "reading %q", name)
		var pf proxyFile
		fatalIf(t, yaml.Unmarshal([]byte(file(a, "proxy.yaml")), &pf), "reading proxy.yaml")
		v := view.Build(snapshotOf(t, file(a, "mesh.yaml"), ""), pf.proxy())
		all := make([][]envoy.Resource, 4)
		var wg sync.WaitGroup
		for i := range all {
			wg.Go(func() { all[i] = buildAll(v) })
		}
		wg.Wait()
		for _, list := range append(all, buildAll(v)) {
			for i, r := range list {
				if r.Version != all[0][i].Version {
					t.Errorf("%s: %s %q differs", name, r.TypeURL, r.Name)
				}
			}
		}
	}
}
