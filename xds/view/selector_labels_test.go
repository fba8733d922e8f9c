package view

import "testing"

// A rule that selects clients by a label counts for those that have it with that
// value, and for no others that see the same.
func TestRuleSelectsClientsByLabel(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.service("shop", "c.mesh", 80)
	w.rule("shop", "c", `{"host":"c.mesh","workloadSelector":{"matchLabels":{"app":"web"}},"subsets":[{"name":"v1"}]}`)
	x := NewIndex(w.snapshot())
	ref := ClusterRef{Kind: OutboundCluster, Host: "c.mesh", Port: 80, Subset: "v1"}
	for i, labels := range []map[string]string{{"app": "web"}, {"app": "api"}, {"tier": "web"}, nil, {"app": "web", "tier": "api"}} {
		if got, want := hasCluster(x.Build(proxyIn("shop", labels)), ref), i == 0 || i == 4; got != want {
			t.Errorf("a client with labels %v has the rule's cluster: %v", labels, got)
		}
	}
}
