package sites

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// absent is one more host of ledger, which is not there.
const absent = `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: orders-b3, namespace: shop}
spec:
  address: 10.2.0.13
  labels: {app: orders, ledger: "yes"}
  serviceAccount: orders
  network: site-b
  locality: site-b
`

// early is a service that is written in one site first.
const early = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: early, namespace: shop}
spec:
  hosts: [early.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9080, name: http, protocol: HTTP}]
  workloadSelector: {labels: {ledger: "yes"}}
`

const earlyURL = "http://early.shop.internal:9080/"

// TestWhatOneSiteKnows has objects in site a alone, a policy in site b alone, and a host of site a removed:
// what the page says of each.
func TestWhatOneSiteKnows(t *testing.T) {
	s := newSites(t)
	s.prepare = func() {
		s.a.Write("absent.yaml", s.addresses().Replace(absent))
		s.a.Write("early.yaml", early)
	}
	s.start()
	s.a.awaitEach(ledger, "orders-b1", "orders-b2") // and not the host of which site b knows nothing
	for text := range s.a.tally(earlyURL, 10) {
		if !strings.HasPrefix(text, "error: status 503") {
			t.Errorf("a service that site b does not know: %s", text)
		}
	}
	s.b.Write("early.yaml", early)
	s.a.awaitAny(earlyURL, "orders-b1", "orders-b2")

	s.b.Edit("services.yaml", "sa/web]", denied) // the policy of site b's hosts is that of site b's server
	envoytest.Eventually(t, envoytest.Patience, func() error { return only(s.a.tally(ledger, 50), "error: status 403: RBAC: access denied") })
	s.a.awaitOnly(orders, "orders-a1", "orders-a2")
	s.b.Edit("services.yaml", denied, "sa/web]")
	s.a.awaitEach(ledger, "orders-b1", "orders-b2")

	if out, err := s.a.CLI("host", "remove", "web-a", "--run-dir", s.a.RunDir("server")); err != nil {
		t.Fatal(out, err)
	}
	s.a.awaitEach(ledger, "orders-b1", "orders-b2") // its certificate is valid until it ends
}
