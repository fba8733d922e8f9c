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

	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// manyServices is a mesh as companies have it: HTTP on 8080, now and then TCP
// besides, ten endpoints a service, a VirtualService on every fifth service and
// a DestinationRule on every tenth.
func manyServices(n int) string {
	var out strings.Builder
	for i := range n {
		ns, name := fmt.Sprintf("ns%02d", i%10), fmt.Sprintf("svc-%04d", i)
		_, _ = fmt.Fprintf(&out, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  hosts: [%[1]s.%[2]s.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 8080, name: http, protocol: HTTP}
`, name, ns)
		if i%10 == 7 {
			_, _ = fmt.Fprintf(&out, "  - {number: 9090, name: tcp, protocol: TCP}\n  addresses: [240.0.%d.%d]\n", i/250, i%250+1)
		}
		_, _ = fmt.Fprintf(&out, "  endpoints:\n")
		for j := range 10 {
			_, _ = fmt.Fprintf(&out, "  - {address: 10.%d.%d.%d, serviceAccount: %s, labels: {app: %s, version: v%d}}\n", i/250, i%250, j+1, name, name, j%2)
		}
		if i%5 == 0 {
			_, _ = fmt.Fprintf(&out, `---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  hosts: [%[1]s.%[2]s.mesh]
  http:
  - match: [{uri: {prefix: /api}}]
    timeout: 5s
    route: [{destination: {host: %[1]s.%[2]s.mesh}}]
  - route: [{destination: {host: %[1]s.%[2]s.mesh}}]
`, name, ns)
		}
		if i%10 == 0 {
			_, _ = fmt.Fprintf(&out, `---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  host: %[1]s.%[2]s.mesh
  trafficPolicy: {connectionPool: {tcp: {maxConnections: 100}}}
  subsets: [{name: v0, labels: {version: v0}}, {name: v1, labels: {version: v1}}]
`, name, ns)
		}
	}
	return out.String()
}

func ordinaryProxy() view.Proxy {
	return proxyFile{Namespace: "ns00", ServiceAccount: "svc-0000", IP: "10.0.0.1", Labels: map[string]string{"app": "svc-0000"}}.proxy()
}

// wireSize is what a resource takes in a response.
func wireSize(r *envoy.Resource) int {
	n := proto.Size(&discoveryv3.Resource{
		Name: r.Name, Version: r.Version, Resource: &anypb.Any{TypeUrl: r.TypeURL, Value: r.Body},
	})
	return n + 3
}

// TestSize keeps a proxy of a mesh of 1,000 services and 10,000 endpoints within
// its budget. Every proxy of the fleet gets as much when it starts.
func TestSize(t *testing.T) {
	t.Parallel()
	const budget = 2_000_000
	resources := buildAll(view.Build(snapshotOf(t, manyServices(1000), ""), ordinaryProxy()))
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
		add(buildAll(view.Build(snapshotOf(t, file(a, "mesh.yaml"), file(a, "meshconfig.yaml")), pf.proxy())))
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
