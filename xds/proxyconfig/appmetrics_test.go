package proxyconfig_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/proxyconfig"
)

// TestAnnotationsOfPrometheus: the agent of a workload is told where the application has its
// metrics, and a changed annotation makes another resource.
func TestAnnotationsOfPrometheus(t *testing.T) {
	t.Parallel()
	versions := map[string]bool{}
	for _, port := range []string{"", "8080", "9090"} {
		w := &mesh.Workload{Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: "shop", Name: "a"}}}
		want := ""
		if port != "" {
			w.Annotations, want = map[string]string{"prometheus.io/port": port}, "http://localhost:"+port+"/metrics"
		}
		body, version, err := proxyconfig.Input{Mesh: &mesh.MeshConfig{Spec: &meshconfig.MeshConfig{}}, Workload: w}.Resource()
		if err != nil {
			t.Fatal(err)
		}
		pc := &meshconfig.ProxyConfig{}
		if err := proto.Unmarshal(body, pc); err != nil {
			t.Fatal(err)
		}
		if got := bootstrap.AppMetricsOf(pc.GetProxyMetadata()); got != want {
			t.Errorf("%q: %q, want %q", port, got, want)
		}
		versions[version] = true
	}
	if len(versions) != 3 {
		t.Errorf("%d versions of three ports", len(versions))
	}
}
