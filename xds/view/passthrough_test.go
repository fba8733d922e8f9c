package view

import (
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestTLSOfSubsetsThroughPassthrough: mTLS passes to a subset if its own tls says so; without one that of the
// rule counts, by port first, as in istiod's tlsModeForDestinationRule.
func TestTLSOfSubsetsThroughPassthrough(t *testing.T) {
	t.Parallel()
	const mutual, off = `{"tls": {"mode": "ISTIO_MUTUAL"}}`, `{"tls": {"mode": "DISABLE"}}`
	const portOff = `{"tls": {"mode": "ISTIO_MUTUAL"}, "portLevelSettings": [{"port": {"number": 80}, "tls": {"mode": "DISABLE"}}]}`
	const portOnly = `{"portLevelSettings": [{"port": {"number": 80}, "tls": {"mode": "ISTIO_MUTUAL"}}]}`
	for _, c := range []struct {
		rule, subset string
		whole, part  bool
	}{
		{`{}`, `{}`, true, true},
		{off, `{}`, false, false},
		{mutual, `{}`, true, true},
		{off, mutual, false, true},
		{mutual, off, true, false},
		{portOff, `{}`, false, false},
		{portOff, mutual, false, true},
		{off, portOnly, false, true},
		{mutual, portOff, true, false},
		{off, `{"loadBalancer": {"simple": "RANDOM"}}`, false, false},
	} {
		w := newMeshFixture(t)
		svc := w.service("shop", "db.mesh", 80)
		svc.External = false
		w.rule("shop", "db", `{"host": "db.mesh", "trafficPolicy": `+c.rule+`, "subsets": [{"name": "v1", "trafficPolicy": `+c.subset+`}]}`)
		w.gateway("a", `{"servers": [{"port": {"number": 15443, "name": "tls", "protocol": "TLS"}, "hosts": ["*.mesh"], "tls": {"mode": "AUTO_PASSTHROUGH"}}]}`)
		reaches := map[string]int{}
		count := func(ref ClusterRef, list []LocalityEndpoints) {
			for _, l := range list {
				if ref.Kind == SNICluster {
					reaches[ref.Subset] += len(l.Endpoints)
				}
			}
		}
		for p := range NewIndex(w.snapshot()).Build(routerIn("shop", "a")).Parts() {
			switch p := p.(type) {
			case *Cluster:
				count(p.Ref, p.Localities)
			case *Endpoints:
				count(p.Ref, p.Localities)
			}
		}
		if svc.Resolution != mesh.ResolutionStatic || (reaches[""] > 0) != c.whole || (reaches["v1"] > 0) != c.part {
			t.Errorf("rule %s, subset %s: endpoints %v, want whole %v, subset %v", c.rule, c.subset, reaches, c.whole, c.part)
		}
	}
}
