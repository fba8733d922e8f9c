package consul

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/envoytest"
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
	f.eventuallyFound("")
	first := apis()[0]

	load := f.load()
	load.Wait(t, 100)
	if r := load.Now(); r.Failed > 0 {
		t.Fatalf("%d of %d requests failed before: %v", r.Failed, r.Good+r.Failed, r.Errors)
	}
	began := time.Now()
	f.takeOut(first)
	f.eventuallyFound(`no-endpoints: VirtualService shop/api`, `tenth.yaml:`, `sends requests to the subset "first" of the host "api.service.consul", which has no endpoint`, "instance=api-1", "at 1 proxy)")
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
	f.eventuallyFound("")
	f.awaitAnswerOf(first.id)
	load = f.load()
	load.Wait(t, 200)
	f.unharmed(load)
}

// lasts is how long a fault is there before it is reported.
const lasts = 30 * time.Second

// eventuallyFound waits until proxy-status names one route that leads nowhere, with these words; or, if the first
// is empty, none.
func (f *fleet) eventuallyFound(words ...string) {
	f.t.Helper()
	envoytest.Eventually(f.t, lasts+envoytest.Patience, func() error {
		out, err := f.CLI("proxy-status", "--run-dir", f.RunDir("server"))
		exit, exited := errors.AsType[*exec.ExitError](err)
		n := strings.Count(out, "no-endpoints: ") + strings.Count(out, "no-destination: ")
		switch {
		case words[0] == "" && (err != nil || n > 0):
			return fmt.Errorf("the mesh is to be well: %w\n%s", err, out)
		case words[0] != "" && (!exited || exit.ExitCode() != 1 || n != 1):
			return fmt.Errorf("%w: %d routes are named:\n%s", err, n, out)
		}
		for _, w := range words {
			if !strings.Contains(out, w) {
				return fmt.Errorf("no %q in\n%s", w, out)
			}
		}
		return nil
	})
}
