package view

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestTenantCannotTakePortOfOthers has a tenant, whose names sort first, declare services
// at the port of another namespace, with every protocol, with capture and without.
// Connections and requests of clients in a third namespace go where they went before.
func TestTenantCannotTakePortOfOthers(t *testing.T) {
	t.Parallel()
	const tenant, shop, platform = 0, 1, 4
	protocols := []mesh.Protocol{mesh.HTTP, mesh.GRPC, mesh.TCP, mesh.TLS, mesh.MySQL, mesh.Mongo, mesh.Undeclared}
	for _, mode := range []Interception{InterceptRedirect, InterceptNone} {
		for _, owner := range []int{shop, platform} {
			for _, theirs := range []mesh.Protocol{mesh.HTTP, mesh.TCP, mesh.MySQL, mesh.Undeclared} {
				for _, attack := range protocols {
					for _, address := range []string{"", "203.0.113.5"} {
						t.Run(fmt.Sprintf("%s-%d-%s-%s-%s", mode, owner, theirs, attack, address), func(t *testing.T) {
							t.Parallel()
							c := newTenantMesh(t, 0)
							c.withPattern(shop, "orders.internal")
							ns := c.names[owner]
							orders := c.sink(ns)
							orders.Name, orders.Hostname, orders.Ports[0].Protocol = "orders", "orders.internal", theirs
							c.objects[owner]["orders"] = orders
							to, authority := netip.MustParseAddr(nobodysAddress), ""
							if mode == InterceptNone {
								to = netip.MustParseAddr(localhost)
							}
							if theirs.IsHTTP() {
								authority = "orders.internal"
							} else {
								c.bare = true
							}
							c.merge()
							if got := c.client(mode).ask(to, authority); got != ns {
								t.Fatalf("before, %q answers", got)
							}
							evil := c.sink(c.names[tenant])
							evil.Name, evil.Hostname, evil.Ports[0].Protocol = "a", "a.aa.svc.cluster.local", attack
							if address != "" {
								evil.Addresses = []string{address}
								c.withPattern(tenant, mesh.Hostname(address))
							}
							c.objects[tenant]["a"] = evil
							reported := func() bool {
								return slices.ContainsFunc(c.snapshot.Conflicts, func(x mesh.Conflict) bool { return x.Key == evil.Key && x.Host == ":80" })
							}
							for range 2 {
								c.merge()
								if got := c.client(mode).ask(to, authority); got != ns {
									t.Errorf("%q answers, and not %s", got, ns)
								}
								if got := c.client(mode).ask(to, "any.example"); !theirs.IsHTTP() && theirs != mesh.Undeclared && got != ns {
									t.Errorf("%q answers a request of HTTP, and not %s", got, ns)
								}
								if want := address == "" && !attack.IsHTTP() && !attack.IsTLS(); reported() != want {
									t.Errorf("reported %t, want %t: %v", reported(), want, c.snapshot.Conflicts)
								}
								c.snapshot = nil // and after a restart
							}
						})
					}
				}
			}
		}
	}
}

// TestPortReturnsToOwnerAfterAbsence removes another namespace's HTTP service from a port
// for a moment, in which a tenant writes its own service there again. When the service is
// back, and after a restart, requests of clients in a third namespace go where they went
// before.
func TestPortReturnsToOwnerAfterAbsence(t *testing.T) {
	t.Parallel()
	const tenant, shop = 0, 1
	for _, mode := range []Interception{InterceptRedirect, InterceptNone} {
		for _, attack := range []mesh.Protocol{mesh.TCP, mesh.TLS, mesh.MySQL, mesh.Mongo, mesh.Undeclared} {
			for _, parked := range []bool{false, true} {
				c := newTenantMesh(t, 0)
				c.withPattern(shop, "orders.internal")
				c.bare = true
				orders, evil := c.sink(c.names[shop]), c.sink(c.names[tenant])
				orders.Name, orders.Hostname = "orders", "orders.internal"
				evil.Name, evil.Hostname, evil.Ports[0].Protocol = "a", "a.aa.svc.cluster.local", attack
				c.objects[shop]["orders"] = orders
				if parked {
					c.objects[tenant]["a"] = evil
				}
				c.merge()
				delete(c.objects[shop], "orders")
				again := *evil
				again.Hash = mesh.Hash{1}
				c.objects[tenant]["a"] = &again
				c.merge()
				c.objects[shop]["orders"] = orders
				to := netip.MustParseAddr(nobodysAddress)
				if mode == InterceptNone {
					to = netip.MustParseAddr(localhost)
				}
				for range 2 {
					c.merge()
					if got := c.client(mode).ask(to, "orders.internal"); got != c.names[shop] {
						t.Errorf("%s, %s, parked %t: %q answers", mode, attack, parked, got)
					}
					c.snapshot = nil // and after a restart
				}
			}
		}
	}
}

// TestSharedHTTPPortKeepsListener has a tenant declare a service, with every HTTP protocol,
// at a port of another namespace, with a host and a date that sort first. The listener of
// clients in a third namespace stays as it was for that service, also after a restart.
func TestSharedHTTPPortKeepsListener(t *testing.T) {
	t.Parallel()
	const tenant, shop, platform = 0, 1, 4
	protocols := []mesh.Protocol{mesh.HTTP, mesh.HTTP2, mesh.GRPC, mesh.GRPCWeb, mesh.HTTPProxy}
	for _, mode := range []Interception{InterceptRedirect, InterceptNone} {
		for _, owner := range []int{shop, platform} {
			for _, theirs := range protocols {
				for _, attack := range protocols {
					t.Run(fmt.Sprintf("%s-%d-%s-%s", mode, owner, theirs, attack), func(t *testing.T) {
						t.Parallel()
						c := newTenantMesh(t, 0)
						c.withPattern(shop, "orders.internal")
						c.bare = true
						orders := c.sink(c.names[owner])
						orders.Name, orders.Hostname, orders.Ports[0].Protocol = "orders", "orders.internal", theirs
						orders.Created = time.Unix(1, 0)
						c.objects[owner]["orders"] = orders
						c.merge()
						before := c.httpListener(mode)
						if !strings.Contains(before, "80") {
							t.Fatalf("before: %q", before)
						}
						evil := c.sink(c.names[tenant])
						evil.Name, evil.Hostname, evil.Ports[0].Protocol, evil.Created = "a", "a.aa.svc.cluster.local", attack, time.Unix(0, 0)
						c.objects[tenant]["a"] = evil
						for range 2 {
							c.merge()
							if got := c.httpListener(mode); got != before {
								t.Errorf("the listener is %s, and was %s", got, before)
							}
							c.snapshot = nil // and after a restart
						}
					})
				}
			}
		}
	}
}

// withPattern gives a tenant hosts by patterns.
func (c *tenantMesh) withPattern(source int, hosts ...mesh.Hostname) {
	b := *c.bindings[source]
	b.Hosts = append(slices.Clone(b.Hosts), hosts...)
	c.bindings = slices.Clone(c.bindings)
	c.bindings[source] = &b
}

// httpListener is what a client in a third namespace has at port 80 for HTTP, in words.
func (c *tenantMesh) httpListener(mode Interception) string {
	var out []string
	for _, l := range c.client(mode).listeners {
		for _, chain := range l.Chains {
			if l.Port == 80 && chain.HTTP != nil {
				out = append(out, fmt.Sprintf("%v %+v %+v", l.Port, chain.Match, *chain.HTTP))
			}
		}
	}
	return strings.Join(out, "\n")
}
