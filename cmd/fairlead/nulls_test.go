package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// templated is a mesh of a template whose values are partly empty: EMPTY stands for a line break.
const templated = `apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web, namespace: shop}
spec: {address: 10.1.0.1, labels: {app: web}, serviceAccount: web}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: web}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.test]
  http:
  - timeout: 2s
    route:
    - destination: {host: web.shop.test}
#   match:
# exportTo:
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec:
  mtls: {mode: STRICT}
# selector:
`

// TestEmptyValuesForEveryCommand: an object with empty values is in force as one without them, for
// all commands that read manifests.
func TestEmptyValuesForEveryCommand(t *testing.T) {
	t.Parallel()
	without, with := write(t, templated), write(t, strings.ReplaceAll(templated, "\n#", "\n "))
	render := func(path string) string {
		code, out, errs := cli(t, "render", "--config-dir", filepath.Dir(path), "--workload", "shop/web", "--interception", "REDIRECT")
		if code != 0 || errs != "" {
			t.Errorf("render: exit code %d, %s", code, errs)
		}
		return strings.ReplaceAll(out, filepath.Dir(path), "DIR")
	}
	want := render(without)
	if got := render(with); got != want || !strings.Contains(got, "web.shop.test") {
		t.Errorf("rendered with empty values:\n%s\nwithout:\n%s", got, want)
	}
	if got := render(write(t, strings.ReplaceAll(templated, "STRICT", "PERMISSIVE"))); got == want {
		t.Error("STRICT makes no difference")
	}
	to := t.TempDir()
	for _, args := range [][]string{
		{"validate", with},
		{"analyze", with},
		{"apply", "--run-dir", t.TempDir(), "--config-dir", to, "--dry-run", with},
	} {
		if code, out, errs := cli(t, args...); code != 0 || strings.Contains(out+errs, "FL01") {
			t.Errorf("%s: exit code %d\n%s%s", args[0], code, out, errs)
		}
	}
	// What selects too much is named by all of them.
	lost := write(t, strings.ReplaceAll(templated, "# selector:", "  selector: {matchLabels: {app: }}"))
	for _, args := range [][]string{{"validate", lost}, {"analyze", lost}, {"apply", "--run-dir", t.TempDir(), "--config-dir", to, "--dry-run", lost}} {
		if code, out, errs := cli(t, args...); code != 0 || strings.Count(out+errs, "warning [FL0190] PeerAuthentication shop/default spec.selector.matchLabels.app: ") != 1 {
			t.Errorf("%s: exit code %d\n%s%s", args[0], code, out, errs)
		}
	}
}
