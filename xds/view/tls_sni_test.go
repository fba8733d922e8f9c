package view

import (
	"slices"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestServicesOfRangesShareAPortByServerName: without capture, services whose addresses are
// ranges have the same listener, and only the server name tells them apart.
func TestServicesOfRangesShareAPortByServerName(t *testing.T) {
	t.Parallel()
	for _, mode := range []Interception{InterceptNone, InterceptRedirect} {
		w := newMeshFixture(t)
		for host, cidr := range map[string]string{"a.test": "192.0.2.0/25", "b.test": "192.0.2.128/25"} {
			s := w.service("shop", host)
			s.Addresses = []string{cidr}
			s.Ports = []mesh.Port{{Name: "tls", Number: 8443, Protocol: mesh.TLS}}
		}
		p := proxyIn("shop", nil)
		p.Interception = mode
		l := findPart(t, Build(w.snapshot(), p), func(l *Listener) bool { return l.Port == 8443 })
		var names []string
		for _, c := range l.Chains {
			names = append(names, c.Match.ServerNames...)
		}
		slices.Sort(names)
		if !slices.Equal(names, []string{"a.test", "b.test"}) || !l.InspectTLS {
			t.Errorf("%s: the listener %s tells apart the server names %q", mode, l.Name, names)
		}
	}
}
