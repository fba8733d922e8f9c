package traffic

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/otelcoltest"
)

// TestGatewayMetrics: a gateway counts what it passes on as the source, with Istio's labels of itself and of
// the service, and what it has no route for.
func TestGatewayMetrics(t *testing.T) {
	t.Parallel()
	e := newBusyEdge(t)
	settle(t, func() error {
		if _, err := e.keys.HTTPS("good.test").Fresh().Get(t.Context(), "https://"+e.at(13, 9443)+"/"); err != nil {
			return err
		}
		_, err := askTCP(t.Context(), e.at(13, 9000), nil)
		return err
	})
	settle(t, e.plainSaysNothing)
	envoytest.Eventually(t, envoytest.Patience, e.counted)
}

// plainSaysNothing is nil if a host that no VirtualService has is answered with 404.
func (e *edgeHost) plainSaysNothing() error {
	err := e.plain(8080, "unknown.test", "/nowhere")
	if err == nil || !strings.Contains(err.Error(), "status 404") {
		return fmt.Errorf("an unknown host: %w", err)
	}
	return nil
}

// counted is nil if the metrics of the gateway have what it passed on.
func (e *edgeHost) counted() error {
	page, err := e.Metrics(13)
	if err != nil {
		return err
	}
	own := []string{
		"reporter", "source", "source_workload", "edge", "source_workload_namespace", "edge", "source_canonical_service", "edge",
		"destination_workload", "echo", "destination_workload_namespace", "shop", "destination_service", echoHost, "destination_service_namespace", "shop",
		"connection_security_policy", "unknown",
	}
	requests := page.Sum("istio_requests_total", append(slices.Clone(own), "source_principal", "spiffe://cluster.local/ns/edge/sa/edge", "destination_principal", echoID, "response_code", "200", "request_protocol", "http", "response_flags", "-")...)
	opened := page.Sum("istio_tcp_connections_opened_total", append(slices.Clone(own), "request_protocol", "tcp")...)
	unknown := page.Sum("istio_requests_total", "reporter", "source", "response_code", "404", "response_flags", "NR", "destination_service_name", "unknown")
	if requests < 3 || opened < 3 || unknown < 3 {
		return fmt.Errorf("%v requests, %v connections, %v without a route in %s", requests, opened, unknown, page.Matching("istio_"))
	}
	if n := page.Sum("istio_requests_total", "reporter", "destination"); n > 0 {
		return fmt.Errorf("%v requests are reported by a destination", n)
	}
	return nil
}

// TestGatewayLogAndSpans: the access log of a gateway has a line for each request and each connection of TCP, with
// the service and what was received, and its span is above that of the service's workload.
func TestGatewayLogAndSpans(t *testing.T) {
	t.Parallel()
	collector := otelcoltest.Start(t)
	_, port, err := net.SplitHostPort(collector.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "access.log")
	e := newBusyEdge(t, "{name: otlp, opentelemetry: {service: collector.watch.internal, port: 4317}}",
		"{name: long, envoyFileAccessLog: {path: "+log+", logFormat: {text: \""+edgePadding+" "+edgeFormat+"\"}}}")
	e.Write("collector.yaml", fmt.Sprintf(collectorEntry, port))
	e.Write("telemetry.yaml", strings.Replace(edgeTelemetry, "name: text", "name: long", 1))
	settle(t, func() error { return e.dumps(log) })
	// The listeners that log and trace may be a moment later than Envoy's configuration.
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if err := e.traced("/logged"); err != nil {
			return err
		}
		if _, err := askTCP(t.Context(), e.at(13, 9000), nil); err != nil {
			return err
		}
		return wrote(log, `9443 /logged 200 outbound\|9080\|\|echo\.shop\.internal;? 0`, `9000 - 0 outbound\|9000\|\|echo\.shop\.internal;? 6`)
	})
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if err := e.traced("/traced"); err != nil {
			return err
		}
		return checkSpans(collector.Traces(t), "edge", "edge")
	})
	e.AwaitLive("echo", "edge")
}

// traced makes a call by TLS that checkSpans finds.
func (e *edgeHost) traced(path string) error {
	tr := &http.Transport{TLSClientConfig: e.keys.TLS("good.test"), DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, "https://"+e.at(13, 9443)+path, http.NoBody)
	if err != nil {
		return err
	}
	req.Host = "good.test"
	req.Header.Set("X-Call", "one")
	resp, err := (&http.Client{Transport: tr, Timeout: patience}).Do(req)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d, %w", resp.StatusCode, err)
	}
	return nil
}

// edgePadding is as much as Envoy keeps of an access log before it writes: it would have a short line for ten seconds.
var edgePadding = strings.Repeat("x", 64<<10)

// wrote is nil if an access log with padded lines has whole lines of these forms.
func wrote(path string, lines ...string) error {
	content, err := os.ReadFile(path)
	text := strings.ReplaceAll(string(content), edgePadding+" ", "")
	for _, line := range lines {
		if err == nil && !regexp.MustCompile("(?m)^"+line+"$").MatchString(text) {
			err = fmt.Errorf("no line %q in the access log:\n%s", line, text)
		}
	}
	return err
}
