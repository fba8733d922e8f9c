package consul

import (
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// tenth sends a tenth of the requests to a subset that has one instance.
const tenth = `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: api, namespace: shop}
spec:
  host: api.service.consul
  subsets:
  - {name: first, labels: {instance: api-1}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: api, namespace: shop}
spec:
  hosts: [api.service.consul]
  http:
  - route:
    - {destination: {host: api.service.consul}, weight: 90}
    - {destination: {host: api.service.consul, subset: first}, weight: 10}
`

// TestLastInstanceOfASubset: the last instance of a subset, which gets a tenth of the requests, is deregistered. These
// requests fail, and the status names the route after 30 s, not before. When the instance is registered again, the
// mesh is well and no request fails.
func TestLastInstanceOfASubset(t *testing.T) {
	t.Parallel()
	f := prepare(t, false)
	f.Write("tenth.yaml", tenth)
	f.start()
	f.EventuallyFound("")
	first := apis()[0]

	load := f.load()
	load.Wait(t, 100)
	if r := load.Now(); r.Failed > 0 {
		t.Fatalf("%d of %d requests failed before: %v", r.Failed, r.Good+r.Failed, r.Errors)
	}
	began := time.Now()
	f.takeOut(first)
	f.EventuallyFound(`no-endpoints: VirtualService shop/api`, `tenth.yaml:`, `sends requests to the subset "first" of the host "api.service.consul", which has no endpoint`, "instance=api-1", "at 1 proxy)")
	took := time.Since(began)
	r := load.Stop()
	t.Logf("%d of %d requests failed; named after %s", r.Failed, r.Good+r.Failed, took.Round(time.Second))
	if r.Failed == 0 || r.Failed > r.Good {
		t.Errorf("%d of %d requests failed, which are to be a tenth: %v", r.Failed, r.Good+r.Failed, r.Errors)
	}
	if took < 30*time.Second {
		t.Errorf("named after %s", took)
	}

	f.put(first, api.HealthPassing)
	f.EventuallyFound("")
	f.awaitAnswerOf(first.id)
	load = f.load()
	load.Wait(t, 200)
	f.unharmed(load)
}
