package traffic

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
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
