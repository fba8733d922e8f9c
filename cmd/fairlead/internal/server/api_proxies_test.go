package server

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/proxyconfig"
	"github.com/fairlead/fairlead/registry/mesh"
)

func TestProxyConfigOfAnUnknownType(t *testing.T) {
	t.Parallel()
	r := start(t, config(t, t.TempDir()))
	ask := func(name string) string {
		err := r.client.Do(t.Context(), http.MethodGet, "/v1/config/web?type="+name, nil, nil)
		if err == nil {
			return ""
		}
		return err.Error()
	}
	unknown := ask("clutser")
	for _, typ := range proxyconfig.Types() {
		if !strings.Contains(unknown, typ.Name) {
			t.Errorf("the error does not name %s: %s", typ.Name, unknown)
		}
		for _, name := range append([]string{typ.Name}, typ.Aliases...) {
			said := ask(name)
			if said == "" || typ.Server == strings.Contains(said, "--agent-run-dir") {
				t.Errorf("%s: %s", name, said)
			}
		}
	}
}

// TestDenying: the status names the workloads that a policy which is not in force closes.
func TestDenying(t *testing.T) {
	t.Parallel()
	origin := &mesh.Origin{Source: "files", Path: "/mesh/a.yaml", Line: 3, Column: 1}
	workload := func(ns, name string, labels map[string]string) *mesh.Workload {
		return &mesh.Workload{Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: ns, Name: name}, Labels: labels}}
	}
	policy := func(ns string, selector map[string]string) *mesh.Unenforced {
		return &mesh.Unenforced{Meta: mesh.Meta{Key: mesh.Key{Kind: "AuthorizationPolicy", Namespace: ns, Name: "p"}, Origin: origin}, Selector: selector}
	}
	orders := map[string]string{"app": "orders"}
	snap := &mesh.Snapshot{MeshConfig: &mesh.MeshConfig{Spec: &meshconfig.MeshConfig{RootNamespace: "istio-system"}}, Unenforced: []*mesh.Unenforced{policy("shop", orders), policy("istio-system", nil), policy("empty", nil)}}
	for i := range 7 {
		snap.Workloads = append(snap.Workloads, workload("shop", "orders-"+strconv.Itoa(i), orders))
	}
	snap.Workloads = append(snap.Workloads, workload("shop", "web", nil), workload("other", "orders", orders))
	got := denying(snap)
	if len(got) != 2 || got[0].Proxies != 7 || got[1].Proxies != 9 || got[0].Origin != "/mesh/a.yaml:3:1" ||
		!strings.Contains(got[0].Message, "deny every request: shop/orders-0, shop/orders-1, shop/orders-2, shop/orders-3, shop/orders-4, 2 more;") {
		t.Errorf("%+v", got)
	}
	if got := denying(nil); got != nil {
		t.Errorf("without a mesh: %+v", got)
	}
}
