package envoy_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// manyServices is a mesh as companies have it: HTTP on 8080 with an address,
// now and then TCP besides, ten endpoints a service in three zones, and routes
// and rules for seven services of twenty.
func manyServices(n int) string {
	var out strings.Builder
	for i := range n {
		ns, name := fmt.Sprintf("team-%02d", i%10), fmt.Sprintf("svc-%05d", i)
		_, _ = fmt.Fprintf(&out, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  hosts: [%[1]s.%[2]s.mesh.internal]
  addresses: [240.1.%[3]d.%[4]d]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 8080, name: http, protocol: HTTP}
`, name, ns, i/250, i%250+1)
		if i%10 == 0 {
			out.WriteString("  - {number: 9000, name: tcp, protocol: TCP}\n")
		}
		out.WriteString("  endpoints:\n")
		for j := range 10 {
			_, _ = fmt.Fprintf(&out, "  - {address: 10.%d.%d.%d, serviceAccount: %s, locality: eu-1/eu-1%c, labels: {version: v%d}}\n",
				i/250, i%250, j+100, name, 'a'+j%3, 1+j%2)
		}
		if i%20 < 7 {
			out.WriteString(routesAndRules(name, ns))
		}
	}
	return out.String()
}

func routesAndRules(name, ns string) string {
	return fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  hosts: [%[1]s.%[2]s.mesh.internal]
  http:
  - match: [{headers: {x-canary: {exact: "true"}}}]
    route: [{destination: {host: %[1]s.%[2]s.mesh.internal, subset: v2}}]
  - route:
    - {destination: {host: %[1]s.%[2]s.mesh.internal, subset: v1}, weight: 90}
    - {destination: {host: %[1]s.%[2]s.mesh.internal, subset: v2}, weight: 10}
    timeout: 15s
    retries: {attempts: 3, perTryTimeout: 4s, retryOn: "5xx,connect-failure"}
    headers: {request: {set: {x-revision: r000000}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  host: %[1]s.%[2]s.mesh.internal
  trafficPolicy:
    connectionPool: {tcp: {maxConnections: 200, connectTimeout: 3s}, http: {http1MaxPendingRequests: 100}}
    outlierDetection: {consecutive5xxErrors: 5, interval: 10s, baseEjectionTime: 30s}
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
`, name, ns)
}

func ordinaryProxy() view.Proxy {
	return proxyFile{Namespace: "team-00", ServiceAccount: "svc-00000", IP: "10.0.0.100", Labels: map[string]string{"app": "svc-00000"}}.proxy()
}

// wireSize is what a resource takes in a response.
func wireSize(r *envoy.Resource) int {
	n := proto.Size(&discoveryv3.Resource{
		Name: r.Name, Version: r.Version, Resource: &anypb.Any{TypeUrl: r.TypeURL, Value: r.Body},
	})
	return n + 3
}

// TestSize keeps a proxy of a mesh of 1,000 services and 10,000 endpoints within
// its budget, with VHDS. Every proxy of the fleet gets as much when
// it starts.
func TestSize(t *testing.T) {
	t.Parallel()
	race.SkipSequential(t)
	const budget = 2_900_000
	var resources []envoy.Resource
	for p := range view.Build(snapshotOf(t, manyServices(1000), ""), ordinaryProxy()).Parts() {
		if table, ok := p.(*view.RouteConfiguration); ok {
			pieces, _ := envoy.BuildVHDSRoutes(table)
			resources = append(append(resources, pieces.Base), pieces.VirtualHosts...)
			continue
		}
		list, _ := envoy.Build(p)
		resources = append(resources, list...)
	}
	size, count := map[string]int{}, map[string]int{}
	total := 0
	for i := range resources {
		n := wireSize(&resources[i])
		size[resources[i].TypeURL] += n
		count[resources[i].TypeURL]++
		total += n
	}
	for typeURL, n := range size {
		t.Logf("%s: %d resources, %d bytes, %d each", typeURL, count[typeURL], n, n/count[typeURL])
	}
	t.Logf("%d bytes in all", total)
	if total > budget {
		t.Errorf("a proxy gets %d bytes, more than %d", total, budget)
	}
}

// TestBytesStay compares the bytes of every golden file's resources, and of
// some of a bigger mesh, with those of the day when they were last changed on
// purpose: an optimisation changes none.
func TestBytesStay(t *testing.T) {
	t.Parallel()
	sum := sha256.New()
	add := func(list []envoy.Resource) {
		for _, r := range list {
			_, _ = fmt.Fprintf(sum, "%s %s %s %d\n", r.TypeURL, r.Name, r.Version, len(r.Body))
			_, _ = sum.Write(r.Body)
		}
	}
	paths, err := filepath.Glob("testdata/*.txtar")
	fatalIf(t, err, "listing testdata")
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		fatalIf(t, err, "reading %q", path)
		var pf proxyFile
		fatalIf(t, yaml.Unmarshal([]byte(file(a, "proxy.yaml")), &pf), "reading proxy.yaml")
		add(buildAll(serverSettings(t, a).NewIndex(snapshotOf(t, file(a, "mesh.yaml"), file(a, "meshconfig.yaml"))).Build(pf.proxy())))
	}
	add(buildAll(view.Build(snapshotOf(t, manyServices(50), ""), ordinaryProxy())))
	got := hex.EncodeToString(sum.Sum(nil)) + "\n"
	const kept = "testdata/bytes.sha256"
	if *update {
		fatalIf(t, os.WriteFile(kept, []byte(got), 0o600), "writing %q", kept)
	}
	want, err := os.ReadFile(kept)
	fatalIf(t, err, "reading %q", kept)
	if got != string(want) {
		t.Errorf("the bytes of resources have changed: %s, not %s; on purpose? then -update", got, want)
	}
}
