package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/xds/bootstrap"
)

// TestWhoIsInSpans: Envoy's environment says who the workload is, as soon as the control plane has
// said so. What somebody named with --envoy-env has precedence.
func TestWhoIsInSpans(t *testing.T) {
	t.Parallel()
	who := bootstrap.Workload{Name: "orders-1", Namespace: "shop", CanonicalName: "orders", CanonicalRevision: "v2", App: "orders", Cluster: "vms"}
	for _, c := range []struct {
		name          string
		environ, pass []string
		known         *bootstrap.Workload
		want          map[string]string
	}{
		{name: "not known yet", environ: []string{"TZ=UTC", "SECRET=1"}, want: map[string]string{"TZ": "UTC"}},
		{name: "known", environ: []string{"TZ=UTC", "SECRET=1", "OTEL_RESOURCE_ATTRIBUTES=a=b"}, known: &who, want: map[string]string{
			"TZ": "UTC", "FAIRLEAD_SPAN_CANONICAL_SERVICE": "orders", "FAIRLEAD_SPAN_CANONICAL_REVISION": "v2", "FAIRLEAD_SPAN_NAMESPACE": "shop", "FAIRLEAD_SPAN_CLUSTER_ID": "vms", "FAIRLEAD_SPAN_MESH_ID": "mesh1",
			"DD_SERVICE": "orders.shop", "OTEL_RESOURCE_ATTRIBUTES": "service.name=orders.shop",
		}},
		{name: "named", environ: []string{"DD_SERVICE=mine", "OTEL_RESOURCE_ATTRIBUTES=service.name=other,a=b", "FAIRLEAD_SPAN_NAMESPACE=no"}, pass: []string{"DD_SERVICE", "OTEL_RESOURCE_ATTRIBUTES"}, known: &who, want: map[string]string{
			"FAIRLEAD_SPAN_CANONICAL_SERVICE": "orders", "FAIRLEAD_SPAN_CANONICAL_REVISION": "v2", "FAIRLEAD_SPAN_NAMESPACE": "shop", "FAIRLEAD_SPAN_CLUSTER_ID": "vms", "FAIRLEAD_SPAN_MESH_ID": "mesh1",
			"DD_SERVICE": "mine", "OTEL_RESOURCE_ATTRIBUTES": "service.name=orders.shop,service.name=other,a=b",
		}},
		{name: "without a label", known: &bootstrap.Workload{Name: "a,b=c", Namespace: "shop"}, want: map[string]string{
			"FAIRLEAD_SPAN_NAMESPACE": "shop", "FAIRLEAD_SPAN_MESH_ID": "mesh1", "DD_SERVICE": "a,b=c.shop", "OTEL_RESOURCE_ATTRIBUTES": "service.name=a_b_c.shop",
		}},
	} {
		a := &Agent{c: Config{Environ: c.environ, EnvoyEnv: c.pass, MeshID: "mesh1"}}
		if c.known != nil {
			a.config.Store(&hostConfig{workload: *c.known})
		}
		got := map[string]string{}
		for _, kv := range (&launcher{a: a}).environ() {
			name, value, _ := strings.Cut(kv, "=")
			got[name] = value // of two the last one counts, as for a process
		}
		names := func(m map[string]string) (out []string) {
			for k, v := range m {
				out = append(out, k+"="+v)
			}
			slices.Sort(out)
			return out
		}
		if !slices.Equal(names(got), names(c.want)) {
			t.Errorf("%s: %q; want %q", c.name, names(got), names(c.want))
		}
	}
}
