package faults

import (
	"testing"
	"time"
)

// nobody is a service whose selector matches nothing.
const nobody = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: nobody, namespace: shop}
spec:
  hosts: [nobody.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9080, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: nobody}}
`

// TestFaultsOfTheMesh: a tenth of the requests is sent to a host that does not exist, to an empty subset, and to a
// service whose selector matches nothing. These fail, and the status names the object after 30 s, not before. It
// is well again when the object is mended, and no request fails any more. A service without workloads, to which
// nothing routes, is no fault.
func TestFaultsOfTheMesh(t *testing.T) {
	s := newShop(t)
	s.Write("nobody.yaml", nobody)
	s.start()
	s.awaitBoth()
	s.unwell("", "")
	const route, subset = "{host: orders.shop.internal, subset: v2}", "- name: v2\n    labels: {version: v2}"
	for _, fault := range []struct{ name, from, to, reason, text string }{
		{"host", route, "{host: order.shop.internal}", "no-destination", `sends requests to the host "order.shop.internal", which does not exist (did you mean "orders.shop.internal"?)`},
		{"subset", subset, "- name: v2\n    labels: {version: v9}", "no-endpoints", `sends requests to the subset "v2" of the host "orders.shop.internal", which has no endpoint: no workload of the host has the labels version=v9 of the subset (DestinationRule shop/orders, `},
		{"selector", route, "{host: nobody.shop.internal}", "no-endpoints", `sends requests to the host "nobody.shop.internal", which has no endpoint: no workload of namespace "shop" has the labels app=nobody`},
	} {
		load := s.client.StartLoad(t, s.url, 100)
		load.Wait(t, 50)
		if r := load.Now(); r.Failed > 0 {
			t.Fatalf("%s: %d of %d requests failed before the fault: %v", fault.name, r.Failed, r.Good+r.Failed, r.Errors)
		}
		began := time.Now()
		s.Edit("orders.yaml", fault.from, fault.to)
		s.unwell(fault.reason, fault.text)
		took := time.Since(began)
		s.unwell(fault.reason, "at 1 proxy)") // of web, which calls orders
		r := load.Stop()
		t.Logf("%s: %d of %d requests failed; named after %s", fault.name, r.Failed, r.Good+r.Failed, took.Round(time.Second))
		if r.Failed == 0 || r.Failed > r.Good {
			t.Errorf("%s: %d of %d requests failed, which are to be a tenth: %v", fault.name, r.Failed, r.Good+r.Failed, r.Errors)
		}
		if took < 30*time.Second {
			t.Errorf("%s: named after %s", fault.name, took)
		}
		s.Edit("orders.yaml", fault.to, fault.from)
		s.unwell("", "")
		s.awaitAnswerOf("orders-v2")
		load = s.client.StartLoad(t, s.url, 100)
		load.Wait(t, 200)
		unharmed(t, load)
	}
	s.noRejections()
}
