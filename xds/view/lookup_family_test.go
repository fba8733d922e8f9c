package view

import (
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestLookupFamilyFollowsTheProxysAddresses: a host without IPv6 cannot use the IPv6
// addresses of a name. Proxies of one namespace with and without IPv6 share nothing wrong.
func TestLookupFamilyFollowsTheProxysAddresses(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	for host, r := range map[string]mesh.Resolution{"a.test": mesh.ResolutionDNS, "b.test": mesh.ResolutionDNSRoundRobin} {
		w.service("shop", host, 80).Resolution = r
	}
	s := w.snapshot()
	for _, dual := range []bool{false, true} {
		x := Settings{DualStackDNS: dual}.NewIndex(s)
		both := LookupV4
		if dual {
			both = LookupAll
		}
		for _, c := range []struct {
			name      string
			addresses []string
			want      LookupFamily
		}{
			{"none", nil, LookupV4},
			{"v4", []string{"10.0.0.1"}, LookupV4},
			{"v4_mapped", []string{"::ffff:10.0.0.1"}, LookupV4},
			{"v6", []string{"2001:db8::1", "fd00::1"}, LookupV6},
			{"both", []string{"10.0.0.1", "2001:db8::1"}, both},
			{"both_v6_first", []string{"2001:db8::1", "10.0.0.1"}, both},
		} {
			p := proxyIn("shop", nil)
			p.Addresses = c.addresses
			v := x.Build(p)
			for _, host := range []mesh.Hostname{"a.test", "b.test"} {
				got := findPart(t, v, func(c *Cluster) bool { return c.Ref == Outbound(host, 80, "") })
				if got.Lookup != c.want {
					t.Errorf("dual stack %v, %s, %s: family %d, want %d", dual, c.name, host, got.Lookup, c.want)
				}
			}
		}
	}
}
