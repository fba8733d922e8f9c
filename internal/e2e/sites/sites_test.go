package sites

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/hosttest"
)

// TestSitesMeetAtTheirGateways shows what the other tests rely on: the hosts of a site reach the
// gateway of the other one by its outer address, and no other host there.
func TestSitesMeetAtTheirGateways(t *testing.T) {
	const port = 7000
	s := newSites(t)
	at := func(address string) string { return fmt.Sprintf("%s:%d", address, port) }
	s.each(func(l *site) {
		l.Control.Serve(l.Control.Label, port, false)
		for label, h := range l.hosts {
			h.Serve(label, port, false)
		}
	})
	check := func(from, to *site) {
		others := append([]*hosttest.Host{to.Control}, values(to.hosts)...)
		for label, h := range from.hosts {
			h.Want(0, at(to.outer[0]), "edge-"+to.name)
			for _, other := range others {
				if other != to.hosts["edge-"+to.name] && !strings.Contains(h.Get(0, at(other.IP4())), "unreachable") {
					t.Errorf("%s reaches %s", label, other.Label)
				}
			}
		}
		for _, other := range others { // it is there for its own site
			to.hosts["web-"+to.name].Want(0, at(other.IP4()), other.Label)
		}
	}
	check(s.a, s.b)
	check(s.b, s.a)
}

func values(hosts map[string]*hosttest.Host) (out []*hosttest.Host) {
	for _, h := range hosts {
		out = append(out, h)
	}
	return out
}

// denied has nobody call orders and ledger.
const denied = "sa/nobody]"

// TestIdentitiesAcrossSites shows that a request from site a to a service of site b is mTLS from end to
// end: b's application learns who called, b's policy holds for it, and the gateway in between only passes it.
func TestIdentitiesAcrossSites(t *testing.T) {
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			s := newSites(t)
			s.each(func(l *site) {
				for _, h := range l.hosts {
					h.Envoy = envoytest.BinaryVersion(t, version)
				}
			})
			s.start()
			s.a.awaitAny(ledger, "orders-b1", "orders-b2")
			one, err1 := s.b.connections("orders-b1")
			two, err2 := s.b.connections("orders-b2")
			if one+two == 0 || err1 != nil || err2 != nil {
				t.Errorf("the gateway of site b has passed nothing from site a: %v, %v", err1, err2)
			}
			s.each(func(l *site) { l.Edit("services.yaml", "sa/web]", denied) })
			for _, l := range []*site{s.a, s.b} { // site b's own client shows that it is the policy
				envoytest.Eventually(t, envoytest.Patience, func() error {
					if got := l.tally(ledger, 20); len(got) != 1 || got["error: status 403: RBAC: access denied"] != 20 {
						return fmt.Errorf("of 20 requests of site %s that the policy denies: %v", l.name, got)
					}
					return nil
				})
			}
			s.each(func(l *site) { l.Edit("services.yaml", denied, "sa/web]") })
			s.a.awaitAny(ledger, "orders-b1", "orders-b2")
		})
	}
}

// TestWithoutNetworks shows that it is MeshNetworks by which a site reaches the other one.
func TestWithoutNetworks(t *testing.T) {
	s := newShape(t, shape{apart: true})
	s.start()
	s.b.awaitAny(ledger, "orders-b1", "orders-b2")
	for text := range s.a.tally(ledger, 10) {
		if !strings.HasPrefix(text, "error: status 503") {
			t.Errorf("site a gets %q", text)
		}
	}
	s.each(func(l *site) { l.awaitOnly(orders, "orders-"+l.name+"1", "orders-"+l.name+"2") })
}

// TestEachServerHasItsOwnHosts shows that all is well for each server, which lists the hosts of its own
// site and no others, and that the example has no errors.
func TestEachServerHasItsOwnHosts(t *testing.T) {
	s := newSites(t)
	s.start()
	s.each(func(l *site) {
		l.Server.Eventually(envoytest.Patience, func() error {
			_, err := l.CLI("proxy-status", "--run-dir", l.RunDir("server")) // exits with 1 if a person is needed
			return err
		})
		by, err := l.Proxies()
		if err != nil || len(by) != len(l.hosts) {
			t.Errorf("site %s has %d hosts, want %d: %v, %v", l.name, len(by), len(l.hosts), by, err)
		}
		for label := range l.hosts {
			if by[label] == nil {
				t.Errorf("site %s does not list %s", l.name, label)
			}
		}
		if out, err := l.CLI("analyze", "--mesh-networks", l.networksFile(), l.ConfigDir); err != nil {
			t.Errorf("analyze: %v: %s", err, out)
		}
	})
}

// TestSharesOfSites shows that where the locality makes no difference, each site gets requests by the
// number of its endpoints, also if the hosts of both sites have the same addresses.
func TestSharesOfSites(t *testing.T) {
	const n, tolerance, want = 600, 0.1, 2. / 3
	for name, hosts := range map[string]func(*testing.T) *sites{"addresses_of_their_own": newSites, "the_same_addresses": newAlike} {
		t.Run(name, func(t *testing.T) {
			s := hosts(t)
			s.start()
			s.each(func(l *site) { // two in three endpoints are in site b
				l.Edit("site-a.yaml", ".11\n  labels: {app: orders", ".11\n  labels: {stock: \"yes\", app: orders")
				l.Edit("site-b.yaml", "labels: {app: orders", "labels: {stock: \"yes\", app: orders")
				l.Write("stock.yaml", stock)
			})
			s.each(func(l *site) {
				l.awaitAny(stockURL, "orders-a1", "orders-b1", "orders-b2")
				got := l.tally(stockURL, n)
				share := float64(got["orders-b1"]+got["orders-b2"]) / n
				t.Logf("from site %s: %v, share of site b %.3f, want %.3f", l.name, got, share, want)
				if share < want-tolerance || share > want+tolerance {
					t.Errorf("from site %s: site b has a share of %.3f, want %.3f: %v", l.name, share, want, got)
				}
			})
		})
	}
}

const stockURL = "http://stock.shop.internal:9080/"

// stock is a service of three of the hosts of orders, without preferences.
const stock = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: stock, namespace: shop}
spec:
  hosts: [stock.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9080, name: http, protocol: HTTP}]
  workloadSelector: {labels: {stock: "yes"}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: stock, namespace: shop}
spec:
  host: stock.shop.internal
  trafficPolicy:
    outlierDetection: {consecutive5xxErrors: 5}
    loadBalancer: {simple: ROUND_ROBIN, localityLbSetting: {enabled: false}}
`
