package traffic

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
	"github.com/fairlead/fairlead/internal/otelcoltest"
)

const collectorEntry = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: collector, namespace: watch}
spec:
  hosts: [collector.watch.internal]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 4317, name: grpc, protocol: GRPC, targetPort: %s}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: mesh, namespace: istio-system}
spec:
  tracing:
  - {providers: [{name: otlp}], randomSamplingPercentage: 100, customTags: {path: {header: {name: x-call}}}}
`

// TestTracesOfHosts: a real Collector has the spans of a request through both hosts: the server's
// below the client's, each with the name and Istio's tags of its own workload, as the control
// plane says them, and with the status.
func TestTracesOfHosts(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			collector := otelcoltest.Start(t)
			_, port, err := net.SplitHostPort(collector.GRPC)
			if err != nil {
				t.Fatal(err)
			}
			p := tracedCall(t, version, fmt.Sprintf(collectorEntry, port), "opentelemetry: {service: collector.watch.internal, port: 4317}")
			envoytest.Eventually(t, envoytest.Patience, func() error { return checkSpans(collector.Traces(t), "client", "shop") })
			p.AwaitLive("client", "echo") // each has accepted everything
		})
	}
}

// tracedCall starts a client and a server with Envoys of a version, whose spans go to a provider, and
// makes a call. entry has the provider's service.
func tracedCall(t *testing.T, version, entry, provider string) *pair {
	t.Helper()
	p := newPair(t)
	p.Write("collector.yaml", entry)
	binary := envoytest.BinaryVersion(t, version)
	for _, h := range []*[]string{&p.clientH.Agent, &p.echoH.Agent} {
		*h = append(*h, "--envoy", binary)
	}
	config := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(config, []byte("extensionProviders: [{name: otlp, "+provider+"}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.StartServer("--mesh-config", config)
	p.StartApp(meshtest.Host{Name: "http", App: []string{"--protocol", "http"}})
	p.StartHost(p.clientH)
	p.StartHost(p.echoH)
	p.AwaitLive("client", "echo")
	envoytest.Eventually(t, envoytest.Patience, func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.at(11, 9080)+"/a", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = echoHost
		req.Header.Set("X-Call", "one")
		resp, err := (&http.Client{Timeout: envoytest.Patience}).Do(req)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	})
	return p
}

// checkSpans looks for a trace of the call of a workload, which echo served.
func checkSpans(all []*tracepb.ResourceSpans, caller, namespace string) error {
	type span struct {
		*tracepb.Span
		tags map[string]string
	}
	var client, server []span
	for _, r := range all {
		service := map[string]string{}
		for _, kv := range r.GetResource().GetAttributes() {
			service[kv.GetKey()] = kv.GetValue().GetStringValue()
		}
		for _, scope := range r.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				tags := map[string]string{"service": service["service.name"]}
				for _, kv := range s.GetAttributes() {
					tags[kv.GetKey()] = kv.GetValue().GetStringValue()
				}
				switch {
				case tags["path"] != "one" || tags["http.status_code"] != "200":
				case s.GetKind() == tracepb.Span_SPAN_KIND_CLIENT:
					client = append(client, span{s, tags})
				case s.GetKind() == tracepb.Span_SPAN_KIND_SERVER:
					server = append(server, span{s, tags})
				}
			}
		}
	}
	if len(client) == 0 || len(server) == 0 {
		return fmt.Errorf("%d spans of clients and %d of servers in %d messages", len(client), len(server), len(all))
	}
	from, to := client[len(client)-1], server[len(server)-1]
	if hex.EncodeToString(from.GetTraceId()) != hex.EncodeToString(to.GetTraceId()) || hex.EncodeToString(from.GetSpanId()) != hex.EncodeToString(to.GetParentSpanId()) {
		return fmt.Errorf("the server's span is not below the client's: %v, %v", from, to)
	}
	for name, of := range map[string]span{caller: from, "echo": to} {
		home := "shop"
		if name == caller {
			home = namespace
		}
		for tag, want := range map[string]string{
			"service": name + "." + home, "istio.canonical_service": name, "istio.canonical_revision": "latest", "istio.namespace": home,
		} {
			if of.tags[tag] != want {
				return fmt.Errorf("%s of %s is %q, not %q", tag, name, of.tags[tag], want)
			}
		}
		if !strings.HasPrefix(of.GetName(), echoHost+":9080/") {
			return fmt.Errorf("the span of %s has the name %s", name, of.GetName())
		}
	}
	return nil
}
