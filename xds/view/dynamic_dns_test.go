package view

import (
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestGatewaysLookUpNoHosts: whoever may send a request to a gateway would choose where it goes, so that a route
// there to a service with resolution DYNAMIC_DNS leads nowhere. Sidecars look up hosts.
func TestGatewaysLookUpNoHosts(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	svc := w.service("shop", "*.dyn.example", 80, 443)
	svc.Resolution, svc.External, svc.Inline = mesh.ResolutionDynamicDNS, true, nil
	svc.Ports[0].Protocol, svc.Ports[1].Protocol = mesh.HTTP, mesh.TLS
	w.rule("shop", "dyn", `{"host": "*.dyn.example", "subsets": [{"name": "v1"}]}`)
	w.gateway("a", `{"servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}, {"port": {"number": 443, "name": "tls", "protocol": "TLS"}, "hosts": ["*"], "tls": {"mode": "PASSTHROUGH"}}]}`)
	w.routes("shop", "all", `{"hosts": ["*"], "gateways": ["shop/a"], "http": [{"route": [{"destination": {"host": "*.dyn.example", "port": {"number": 80}}}]}],
		"tls": [{"match": [{"sniHosts": ["*"]}], "route": [{"destination": {"host": "*.dyn.example", "port": {"number": 443}}}]}]}`)
	x := NewIndex(w.snapshot())
	sidecar := routerIn("shop", "a")
	sidecar.Type = Sidecar
	for _, c := range []struct {
		proxy Proxy
		want  int
	}{{routerIn("shop", "a"), 0}, {sidecar, 2}} {
		var found []ClusterRef
		for p := range x.Build(c.proxy).Parts() {
			switch p := p.(type) {
			case *Cluster:
				if p.Discovery == DiscoverDynamic {
					found = append(found, p.Ref)
				}
			case *Listener:
				for _, chain := range p.Chains {
					if c.proxy.Type == Router && chain.TCP != nil && chain.TCP.LookUp != 0 {
						t.Errorf("listener %s of a gateway looks up server names", p.Name)
					}
				}
			}
		}
		if len(found) != c.want {
			t.Errorf("%s: clusters %v, want %d", c.proxy.Type, found, c.want)
		}
	}
}
