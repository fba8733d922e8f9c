package view

import (
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

// TestWhoUsesCredentials: as in Istio, gateways use credentialName of any rule, and sidecars only of
// one with a selector. Without one they send what the application sends: never with the roots of the
// machine, and never with mTLS of the mesh, for which nobody asked.
func TestWhoUsesCredentials(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tls      string
		selector bool
		typ      ProxyType
		want     networking.ClientTLSSettings_TLSmode
	}{
		"sidecar":                  {`{"mode": "SIMPLE", "credentialName": "c"}`, false, Sidecar, networking.ClientTLSSettings_DISABLE},
		"sidecar_mutual":           {`{"mode": "MUTUAL", "credentialName": "c"}`, false, Sidecar, networking.ClientTLSSettings_DISABLE},
		"sidecar_selected":         {`{"mode": "MUTUAL", "credentialName": "c"}`, true, Sidecar, networking.ClientTLSSettings_MUTUAL},
		"sidecar_without":          {`{"mode": "SIMPLE"}`, false, Sidecar, networking.ClientTLSSettings_SIMPLE},
		"gateway":                  {`{"mode": "SIMPLE", "credentialName": "c"}`, false, Router, networking.ClientTLSSettings_SIMPLE},
		"gateway_mutual":           {`{"mode": "MUTUAL", "credentialName": "c"}`, false, Router, networking.ClientTLSSettings_MUTUAL},
		"gateway_selected_without": {`{"mode": "SIMPLE"}`, true, Router, networking.ClientTLSSettings_SIMPLE},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newMeshFixture(t)
			w.service("shop", "orders", 80)
			selector := ""
			if c.selector {
				selector = `"workloadSelector": {"matchLabels": {"app": "web"}},`
			}
			w.rule("shop", "orders", `{"host": "orders", `+selector+`"trafficPolicy": {"portLevelSettings": [{"port": {"number": 80}, "tls": `+c.tls+`}]}, "subsets": [{"name": "v1"}]}`)
			x := NewIndex(w.snapshot())
			// The other type comes first: what is shared must not be of another proxy.
			p, other := proxyIn("shop", map[string]string{"app": "web"}), proxyIn("shop", map[string]string{"app": "web"})
			p.Type, other.Type = c.typ, Router
			if c.typ == Router {
				other.Type = Sidecar
			}
			x.Build(other)
			v := x.Build(p)
			for _, subset := range []string{"", "v1"} {
				cluster := findPart(t, v, func(p *Cluster) bool { return p.Ref == Outbound("orders", 80, subset) })
				if got := cluster.Policy.GetTls().GetMode(); got != c.want || cluster.TLS != nil {
					t.Errorf("subset %q: mode %s, mTLS of the mesh %v; want %s", subset, got, cluster.TLS != nil, c.want)
				}
				if named := cluster.Policy.GetTls().GetCredentialName() != ""; named && c.want == networking.ClientTLSSettings_DISABLE {
					t.Errorf("subset %q: the credential is named", subset)
				}
			}
		})
	}
}
