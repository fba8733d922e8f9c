package traffic

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// istioPort is the agent's HTTP port.
const istioPort = "15020"

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
				*h = append(*h, "--envoy", binary, "--http-address", net.JoinHostPort(p.Address(11+i), istioPort))
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
			client, echo := `source_workload="client"`, `destination_workload="echo"`
			server := `destination_principal="` + echoID + `"`
			if version == envoytest.Oldest { // its access log does not have the server's certificate
				server = `destination_principal="unknown"`
			}
			asClient := `source_principal="` + clientID + `"`
			self := asClient
			if version == envoytest.Oldest {
				self = `source_principal="unknown"`
			}
			want := map[int][]count{
				11: {
					{"istio_requests_total", times, []string{`reporter="source"`, `request_protocol="http"`, `response_code="200"`, `destination_service="` + echoHost + `"`, client, echo, server, self}},
					{"istio_requests_total", times, []string{`reporter="source"`, `request_protocol="grpc"`, `grpc_response_status="0"`, echo}},
					{"istio_tcp_connections_opened_total", times, []string{`reporter="source"`, `destination_service_namespace="shop"`, client, echo}},
					{"istio_tcp_connections_closed_total", times, []string{`reporter="source"`, echo}},
					{"istio_request_duration_milliseconds_count", 2 * times, []string{`reporter="source"`}},
				},
				12: {
					{"istio_requests_total", times, []string{`reporter="destination"`, `request_protocol="http"`, `connection_security_policy="mutual_tls"`, asClient, echo, `destination_service_name="` + echoHost + `"`}},
					{"istio_requests_total", times, []string{`reporter="destination"`, `request_protocol="grpc"`, asClient}},
					{"istio_tcp_connections_opened_total", times, []string{`reporter="destination"`, asClient, `source_workload_namespace="shop"`}},
					{"istio_response_bytes_count", 2 * times, []string{`reporter="destination"`}},
				},
			}
			for _, host := range []int{11, 12} {
				settle(t, func() error {
					now, err := p.counters(t, host)
					if err != nil {
						return err
					}
					for _, c := range want[host] {
						if n := c.of(now); n != c.n {
							return fmt.Errorf("host %d: %s%v is %v, want %v:\n%s", host, c.name, c.labels, n, c.n, istioOnly(now))
						}
					}
					return nil
				})
			}
			p.AwaitLive("client", "echo") // each has accepted everything
		})
	}
}

// count is a metric with some labels, without a flag of failure, and what it is in sum.
type count struct {
	name   string
	n      float64
	labels []string
}

// of is the sum of all series with the labels.
func (c count) of(counters map[string]float64) (sum float64) {
	for series, n := range counters {
		name, labels, _ := strings.Cut(series, "{")
		has := name == c.name && strings.Contains(labels, `response_flags="-"`)
		for _, l := range c.labels {
			has = has && strings.Contains(labels, l)
		}
		if has {
			sum += n
		}
	}
	return sum
}

func istioOnly(counters map[string]float64) string {
	var b strings.Builder
	for series, n := range counters {
		if strings.HasPrefix(series, "istio_") {
			_, _ = fmt.Fprintln(&b, series, n)
		}
	}
	return b.String()
}

// counters are the counters and the counts of histograms on the page of a host's agent.
func (p *pair) counters(t *testing.T, host int) (map[string]float64, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+net.JoinHostPort(p.Address(host), istioPort)+"/stats/prometheus", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Timeout: 20 * time.Second}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%d %s: %w", resp.StatusCode, body, err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(body)))
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			labels := make([]string, 0, len(m.GetLabel()))
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			series := "{" + strings.Join(labels, ",") + "}"
			switch {
			case m.GetCounter() != nil:
				out[name+series] = m.GetCounter().GetValue()
			case m.GetHistogram() != nil:
				out[name+"_count"+series] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return out, nil
}
