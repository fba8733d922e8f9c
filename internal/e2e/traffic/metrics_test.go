package traffic

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// count is a metric with some labels, given as name and value in turn, and what it is in sum.
type count struct {
	name   string
	n      float64
	labels []string
}

// TestMetricsOfIstio: both sides count each request and connection, with Istio's labels, by every
// Envoy.
func TestMetricsOfIstio(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			binary := envoytest.BinaryVersion(t, version)
			for i, h := range []*[]string{&p.clientH.Agent, &p.echoH.Agent} {
				*h = append(*h, "--envoy", binary, "--http-address", p.AgentHTTP(11+i))
			}
			config := filepath.Join(t.TempDir(), "mesh.yaml")
			if err := os.WriteFile(config, []byte("defaultProviders: {metrics: [prometheus]}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			p.StartServer("--mesh-config", config)
			for _, name := range []string{"http", "grpc", "tcp"} {
				p.StartApp(meshtest.Host{Name: name, App: []string{"--protocol", name}})
			}
			p.StartHost(p.clientH)
			p.StartHost(p.echoH)
			p.AwaitLive("client", "echo")
			const times = 7 // each succeeds; what fails while listeners open has a flag
			for _, pr := range protocols() {
				for i := range times {
					ask := func() error {
						_, err := pr.ask(t.Context(), p.at(11, pr.port), nil)
						return err
					}
					if i == 0 {
						envoytest.Eventually(t, envoytest.Patience, ask)
					} else if err := ask(); err != nil {
						t.Fatalf("%s: %v", pr.name, err)
					}
				}
			}
			asClient, asEcho := clientID, echoID
			if version == envoytest.Oldest { // its access log does not have the server's certificate
				asClient, asEcho = "unknown", "unknown"
			}
			want := map[int][]count{
				11: {
					{"istio_requests_total", times, []string{"request_protocol", "http", "response_code", "200", "destination_service", echoHost, "destination_principal", asEcho, "source_principal", asClient}},
					{"istio_requests_total", times, []string{"request_protocol", "grpc", "grpc_response_status", "0"}},
					{"istio_tcp_connections_opened_total", times, []string{"destination_service_namespace", "shop"}},
					{"istio_tcp_connections_closed_total", times, nil},
					{"istio_request_duration_milliseconds_count", 2 * times, nil},
				},
				12: {
					{"istio_requests_total", times, []string{"request_protocol", "http", "connection_security_policy", "mutual_tls", "source_principal", clientID, "destination_service_name", echoHost}},
					{"istio_requests_total", times, []string{"request_protocol", "grpc", "source_principal", clientID}},
					{"istio_tcp_connections_opened_total", times, []string{"source_principal", clientID, "source_workload_namespace", "shop"}},
					{"istio_response_bytes_count", 2 * times, nil},
				},
			}
			sides := map[int]string{11: "source", 12: "destination"}
			for _, host := range []int{11, 12} {
				settle(t, func() error {
					now, err := p.Metrics(host)
					if err != nil {
						return err
					}
					for _, c := range want[host] {
						labels := append([]string{"reporter", sides[host], "source_workload", "client", "destination_workload", "echo", "response_flags", "-"}, c.labels...)
						labels = append(labels, "source_canonical_service", "client", "source_canonical_revision", "latest", "source_cluster", "Kubernetes")
						if n := now.Sum(c.name, labels...); n != c.n {
							return fmt.Errorf("host %d: %s%v is %v, want %v:\n%s", host, c.name, labels, n, c.n, now.Matching("istio_"))
						}
					}
					return nil
				})
			}
			p.AwaitLive("client", "echo") // each has accepted everything
		})
	}
}
