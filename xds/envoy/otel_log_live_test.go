package envoy_test

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	otlpcommon "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/otelcoltest"
)

const otelLogSettings = `
extensionProviders:
- {name: otel, envoyOtelAls: {service: receiver.watch.mesh, port: 4317, logFormat: {text: "%REQ(:PATH)%", labels: {code: "%RESPONSE_CODE%"}}}}
- {name: plain, envoyOtelAls: {service: receiver.watch.mesh, port: 4317}}
`

const otelLogManifests = `
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: receiver, namespace: watch}
spec:
  hosts: [receiver.watch.mesh]
  location: MESH_EXTERNAL
  resolution: STATIC
  exportTo: ["."]
  ports: [{number: 4317, name: tcp, protocol: TCP, targetPort: RECEIVER}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: mesh, namespace: istio-system}
spec:
  accessLogging: [{providers: [{name: otel}, {name: plain}]}]
`

// TestAccessLogsReachACollector: a real OpenTelemetry Collector takes the access logs of every
// Envoy, one record for each side of a request, with the body and the attributes that the provider
// says, and in Istio's format.
func TestAccessLogsReachACollector(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := otelcoltest.Start(t)
			_, port, err := net.SplitHostPort(c.GRPC)
			fatalIf(t, err, "the Collector's address")
			f := &fixture{version: version, echo: statusServer(t), meshConfig: otelLogSettings}
			f.setUp(t, strings.ReplaceAll(otelLogManifests, "RECEIVER", port))
			ctx := t.Context()
			envoytest.Eventually(t, envoytest.Patience, func() error {
				_, _, err := get(ctx, at(clientIP, f.http), nil)
				return err
			})
			for path, want := range map[string]int{"/fine": http.StatusOK, "/status/404": http.StatusNotFound} {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at(clientIP, f.http)+path, nil)
				fatalIf(t, err, "making a request")
				req.Host = "orders.shop.mesh"
				resp, err := (&http.Client{Timeout: envoytest.Patience}).Do(req)
				fatalIf(t, err, "GET %s", path)
				_ = resp.Body.Close()
				if resp.StatusCode != want {
					t.Fatalf("GET %s: %d", path, resp.StatusCode)
				}
			}
			envoytest.Eventually(t, envoytest.Patience, func() error { return checkCollected(t, c) })
			f.client.NoRejections(t)
			f.server.NoRejections(t)
		})
	}
}

// checkCollected wants two records of each request from each provider.
func checkCollected(t *testing.T, c *otelcoltest.Collector) error {
	t.Helper()
	count := map[string]int{}
	for _, resource := range c.Logs(t) {
		for _, scope := range resource.GetScopeLogs() {
			for _, r := range scope.GetLogRecords() {
				body := r.GetBody().GetStringValue()
				if strings.Contains(body, `"GET /fine HTTP/1.1" 200 `) {
					count["Istio's format"]++
				} else {
					count[body+" "+attribute(r.GetAttributes(), "code")]++
				}
				if r.GetTimeUnixNano() == 0 {
					return fmt.Errorf("a record without a time: %v", r)
				}
			}
		}
	}
	for what, n := range map[string]int{"Istio's format": 2, "/fine 200": 2, "/status/404 404": 2} {
		if count[what] != n {
			return fmt.Errorf("%s: %d records, want %d (%v)", what, count[what], n, count)
		}
	}
	return nil
}

// attribute is the text of an attribute; or "".
func attribute(all []*otlpcommon.KeyValue, name string) string {
	i := slices.IndexFunc(all, func(kv *otlpcommon.KeyValue) bool { return kv.GetKey() == name })
	if i < 0 {
		return ""
	}
	return all[i].GetValue().GetStringValue()
}
