package proxyconfig_test

import (
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/proxyconfig"
)

// TestWorkloadOf has the answers of Istio's CanonicalService and WorkloadNameFromWorkloadEntry
// (pkg/kube/labels).
func TestWorkloadOf(t *testing.T) {
	t.Parallel()
	const cluster = "Kubernetes"
	for name, c := range map[string]struct {
		labels, annotations map[string]string
		want                bootstrap.Workload
	}{
		"no labels": {want: bootstrap.Workload{Name: "vm1", CanonicalName: "vm1", CanonicalRevision: "latest"}},
		"app and version": {
			labels: map[string]string{"app": "orders", "version": "v2"},
			want:   bootstrap.Workload{Name: "vm1", CanonicalName: "orders", CanonicalRevision: "v2", App: "orders", Version: "v2"},
		},
		"Kubernetes' names go first": {
			labels: map[string]string{"app": "orders", "version": "v2", "app.kubernetes.io/name": "k", "app.kubernetes.io/version": "v3"},
			want:   bootstrap.Workload{Name: "vm1", CanonicalName: "k", CanonicalRevision: "v3", App: "orders", Version: "v2"},
		},
		"canonical labels go before all": {
			labels: map[string]string{
				"service.istio.io/canonical-name": "c", "service.istio.io/canonical-revision": "r",
				"app": "orders", "version": "v2", "app.kubernetes.io/name": "k", "app.kubernetes.io/version": "v3",
			},
			want: bootstrap.Workload{Name: "vm1", CanonicalName: "c", CanonicalRevision: "r", App: "orders", Version: "v2"},
		},
		"a name of its own": {
			labels: map[string]string{"service.istio.io/workload-name": "orders-v1"},
			want:   bootstrap.Workload{Name: "orders-v1", CanonicalName: "orders-v1", CanonicalRevision: "latest"},
		},
		"a group": {
			labels:      map[string]string{"service.istio.io/workload-name": "orders-v1"},
			annotations: map[string]string{"istio.io/autoRegistrationGroup": "group"},
			want:        bootstrap.Workload{Name: "group", CanonicalName: "group", CanonicalRevision: "latest"},
		},
		"an instance of a catalog's service": {
			labels: map[string]string{mesh.LabelConsulService: "orders"},
			want:   bootstrap.Workload{Name: "orders", CanonicalName: "orders", CanonicalRevision: "latest"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &mesh.Workload{Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: "shop", Name: "vm1"}, Labels: c.labels, Annotations: c.annotations}}
			c.want.Namespace, c.want.Cluster = "shop", cluster
			if got := proxyconfig.WorkloadOf(w); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
