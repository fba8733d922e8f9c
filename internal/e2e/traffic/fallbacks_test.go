package traffic

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// everything is a mesh whose proxies report in every way that there is.
const everything = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: receiver, namespace: watch}
spec:
  hosts: [receiver.watch.internal]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 4317, name: grpc, protocol: GRPC}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: shop}
spec:
  hosts: [shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9080, name: http, protocol: HTTP}, {number: 9000, name: tcp, protocol: TCP}]
  workloadSelector: {labels: {app: shop}}
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: everything, namespace: istio-system}
spec:
  accessLogging:
  - providers: [{name: otel}, {name: als}, {name: json}]
    filter: {expression: "response.code >= 400"}
  tracing:
  - providers: [{name: spans}]
    disableContextPropagation: true
    customTags: {protocol: {formatter: {value: "%PROTOCOL%"}}, fixed: {literal: {value: "1"}}}
  metrics:
  - providers: [{name: prometheus}]
    overrides:
    - match: {metric: REQUEST_COUNT}
      tagOverrides: {method: {value: request.method}, source_app: {operation: REMOVE}}
`

const everyProvider = `
extensionProviders:
- {name: otel, envoyOtelAls: {service: receiver.watch.internal, port: 4317}}
- {name: als, envoyHttpAls: {service: receiver.watch.internal, port: 4317}}
- {name: json, envoyFileAccessLog: {path: /dev/stdout, logFormat: {labels: {code: "%RESPONSE_CODE%"}}}}
- {name: spans, opentelemetry: {service: receiver.watch.internal, port: 4317}}
defaultProviders: {metrics: [prometheus]}
`

// TestEveryEnvoyReportsEverything: no Envoy rejects anything of a mesh that reports in every way,
// and the status has what its release lacks, as the page for people has.
func TestEveryEnvoyReportsEverything(t *testing.T) {
	t.Parallel()
	versions := envoytest.Versions()
	m := meshtest.New(t, "", nil)
	config := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(config, []byte(everyProvider), 0o600); err != nil {
		t.Fatal(err)
	}
	var manifests strings.Builder
	manifests.WriteString(everything)
	for i := range versions {
		fmt.Fprintf(&manifests, "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: shop-%d, namespace: shop}\nspec: {address: 127.0.0.%[2]d, labels: {app: shop}, serviceAccount: shop}\n", i, 11+i)
	}
	m.Write("everything.yaml", manifests.String())
	m.StartServer("--mesh-config", config)
	var names []string
	for i, version := range versions {
		h := meshtest.Host{Name: fmt.Sprintf("shop-%d", i), Workload: "shop/shop", Address: 11 + i}
		h.Agent = []string{"--drain-time", "1s", "--envoy", envoytest.BinaryVersion(t, version), "--http-address", m.AgentHTTP(h.Address)}
		m.StartHost(h)
		names = append(names, h.Name)
	}
	m.AwaitLive(names...)
	all, err := m.Proxies()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(t), "docs", "telemetry.md"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"1.36": 5, "1.37": 1}
	for i, version := range versions {
		status := all[names[i]]
		if err := neverRejected(status); err != nil {
			t.Errorf("Envoy %s: %v", version, err)
		}
		fallbacks, _ := status["fallbacks"].([]any)
		minor := strings.Join(strings.Split(version, ".")[:2], ".")
		if len(fallbacks) != want[minor] {
			t.Errorf("Envoy %s: %q; want %d fallbacks", version, fallbacks, want[minor])
		}
		for _, f := range fallbacks {
			words := strings.Replace(fmt.Sprint(f), "the tag protocol", "the tag NAME", 1)
			if row := fmt.Sprintf("| %s | `%s` |", minor, words); !strings.Contains(string(page), row) {
				t.Errorf("docs/telemetry.md does not have the line\n%s", row)
			}
		}
	}
}

// neverRejected says what of its configuration a proxy has rejected since it came.
func neverRejected(status map[string]any) error {
	types, _ := status["types"].([]any)
	var seen []string
	for _, one := range types {
		kind, _ := one.(map[string]any)
		if n, rejected := kind["nacked"]; rejected {
			return fmt.Errorf("%v of %v were rejected", n, kind["type"])
		}
		seen = append(seen, fmt.Sprint(kind["type"]))
	}
	if !slices.ContainsFunc(seen, func(kind string) bool { return strings.Contains(strings.ToLower(kind), "listener") || kind == "lds" }) {
		return errors.New("the status has no listeners: " + strings.Join(seen, ", "))
	}
	return nil
}
