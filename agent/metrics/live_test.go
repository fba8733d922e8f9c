package metrics

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/internal/envoytest"
)

const (
	clientID = "spiffe://cluster.local/ns/clients/sa/frontend"
	serverID = "spiffe://cluster.local/ns/shop/sa/orders"
)

// mesh is one Envoy that is both sides: an outbound and an inbound listener for HTTP and for
// TCP, with mTLS between them, and loggers as the control plane configures them.
type mesh struct {
	*rig
	envoy                    *envoytest.Envoy
	out, plain, dead, outTCP string // addresses of listeners
	version                  string
	client                   string // the workload's name in the client's certificate
	maxCounters              int    // of Envoy, from 1.39 on
}

const usualClient = "frontend-7"

// subjectOf is the subject of a certificate of the mesh's authority.
func subjectOf(name, revision, service string) pkix.Name {
	out := pkix.Name{Organization: []string{"Fairlead"}}
	for _, unit := range []string{service, revision, name} {
		out.ExtraNames = append(out.ExtraNames, pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 11}, Value: unit})
	}
	return out
}

func newMesh(t *testing.T, version, client string) *mesh {
	t.Helper()
	m := &mesh{rig: newRig(t, nil), version: version, client: client, maxCounters: 4000}
	m.start(t)
	return m
}

// start starts the Envoy, or another one.
func (m *mesh) start(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	ca := newAuthority(t)
	ca.issue(t, dir, "client", clientID, subjectOf(m.client, "v1", "frontend"))
	ca.issue(t, dir, "server", serverID, subjectOf("orders-v1", "v1", "orders"))
	ports := envoytest.FreePorts(t, 6)
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	m.out, m.plain, m.dead, m.outTCP = at(0), at(2), at(3), at(4)
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = echo.Close() })
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	minor := envoytest.Minor(t, m.version)
	resources := "listeners:\n" +
		httpListener("out", ports[0], "route: {cluster: orders}", httpLog(minor, m.maxCounters, source), "") +
		httpListener("in", ports[1], `direct_response: {status: 200, body: {inline_string: "hello"}}`, httpLog(minor, m.maxCounters, destination), serverTLS(dir)) +
		httpListener("plain", ports[2], `direct_response: {status: 404}`, httpLog(minor, m.maxCounters, destination), "") +
		httpListener("dead", ports[3], "route: {cluster: dead}", httpLog(minor, m.maxCounters, source), "") +
		tcpListener("out_tcp", ports[4], "orders_tcp", source, "") +
		tcpListener("in_tcp", ports[5], "echo", destination, serverTLS(dir)) +
		"clusters:\n" +
		cluster("orders", ports[1], clientTLS(dir)) +
		cluster("orders_tcp", ports[5], clientTLS(dir)) +
		cluster("dead", 1, "") +
		cluster("echo", echo.Addr().(*net.TCPAddr).Port, "")
	m.envoy = startEnvoy(t, m.version, m.socket, resources)
	m.attach(m.envoy)
	m.knows(t, resources)
	for _, address := range []string{m.out, m.plain, m.dead, m.outTCP} {
		envoytest.Eventually(t, envoytest.Patience, func() error {
			c, err := net.Dial("tcp", address)
			if err == nil {
				_ = c.Close()
			}
			return err
		})
	}
}

// send sends requests, and returns when all are answered.
func (m *mesh) send(t *testing.T, to string, n int) {
	t.Helper()
	client := &http.Client{Timeout: envoytest.Patience, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for range n {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+to+"/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
}

// labels are those of a series with what differs from unknown.
func wantLabels(pairs ...string) string {
	names := []string{
		"reporter", "source_workload", "source_canonical_service", "source_canonical_revision", "source_workload_namespace",
		"source_principal", "source_app", "source_version", "source_cluster", "destination_workload", "destination_workload_namespace",
		"destination_principal", "destination_app", "destination_version", "destination_service", "destination_canonical_service",
		"destination_canonical_revision", "destination_service_name", "destination_service_namespace", "destination_cluster",
		"request_protocol", "response_code", "grpc_response_status", "response_flags", "connection_security_policy",
	}
	var b strings.Builder
	for _, n := range names {
		value := unknown
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == n {
				value = pairs[i+1]
			}
		}
		if value != "absent" {
			fmt.Fprintf(&b, "%s=%s\n", n, value)
		}
	}
	return b.String()
}

// TestRequestsOfRealEnvoys: each Envoy counts known requests, and the page has each metric with
// each of Istio's labels.
func TestRequestsOfRealEnvoys(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t) // or skip
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, version, usualClient)
			m.run(t)
			m.send(t, m.out, 30)
			m.send(t, m.plain, 7)
			m.send(t, m.dead, 3)
			known := envoytest.Minor(t, version) >= 37 // the server's certificate
			orders := []string{
				"reporter", "source", "source_workload", "web-1", "source_canonical_service", "web", "source_canonical_revision", "v2",
				"source_workload_namespace", "shop", "source_app", "web", "source_version", "v2", "source_cluster", "vms",
				"destination_workload", "orders-v1", "destination_workload_namespace", "shop", "destination_service", "orders.shop",
				"destination_canonical_service", "orders", "destination_canonical_revision", "v1", "destination_service_name", "orders",
				"destination_service_namespace", "shop", "destination_cluster", "vms", "request_protocol", "http",
				"response_code", "200", "grpc_response_status", "", "response_flags", "-",
			}
			if known {
				orders = append(orders, "source_principal", testWorkload().Principal, "destination_principal", serverID)
			}
			served := []string{
				"reporter", "destination", "destination_workload", "web-1", "destination_canonical_service", "web", "destination_canonical_revision", "v2",
				"destination_workload_namespace", "shop", "destination_principal", testWorkload().Principal, "destination_app", "web", "destination_version", "v2",
				"destination_cluster", "vms", "destination_service", "web", "destination_service_name", "web", "destination_service_namespace", "shop",
				"source_workload", "frontend-7", "source_canonical_service", "frontend", "source_canonical_revision", "v1", "source_workload_namespace", "clients",
				"source_principal", clientID, "source_cluster", "vms", "request_protocol", "http",
				"response_code", "200", "grpc_response_status", "", "response_flags", "-", "connection_security_policy", "mutual_tls",
			}
			plain := []string{
				"reporter", "destination", "destination_workload", "web-1", "destination_canonical_service", "web", "destination_canonical_revision", "v2",
				"destination_workload_namespace", "shop", "destination_app", "web", "destination_version", "v2", "destination_cluster", "vms",
				"destination_service", "web", "destination_service_name", "web", "destination_service_namespace", "shop", "source_canonical_revision", "latest",
				"request_protocol", "http", "response_code", "404", "grpc_response_status", "", "response_flags", "-", "connection_security_policy", "none",
			}
			failed := []string{
				"reporter", "source", "source_workload", "web-1", "source_canonical_service", "web", "source_canonical_revision", "v2",
				"source_workload_namespace", "shop", "source_app", "web", "source_version", "v2", "source_cluster", "vms",
				"destination_workload", "dead-v1", "destination_workload_namespace", "shop", "destination_service", "dead.shop",
				"destination_canonical_service", "dead", "destination_canonical_revision", "v1", "destination_service_name", "dead",
				"destination_service_namespace", "shop", "destination_cluster", "vms", "request_protocol", "http",
				"response_code", "503", "grpc_response_status", "", "response_flags", "UF",
			}
			want := map[string]uint64{wantLabels(orders...): 30, wantLabels(served...): 30, wantLabels(plain...): 7, wantLabels(failed...): 3}
			envoytest.Eventually(t, envoytest.Patience, func() error {
				families, _ := m.scrape(t)
				for _, name := range []string{"istio_requests_total", "istio_request_duration_milliseconds", "istio_request_bytes", "istio_response_bytes"} {
					got := map[string]uint64{}
					for _, s := range families[name].GetMetric() {
						got[text(s)] = uint64(s.GetCounter().GetValue()) + s.GetHistogram().GetSampleCount()
					}
					if diff := cmp.Diff(want, got); diff != "" {
						return fmt.Errorf("%s: %s", name, diff)
					}
				}
				return nil
			})
			families, page := m.scrape(t)
			for _, s := range find(families["istio_response_bytes"], "reporter=destination", "response_code=200") {
				buckets := s.GetHistogram().GetBucket()
				if n := len(buckets); n != 20 || buckets[18].GetUpperBound() != 3.6e6 {
					t.Errorf("%d buckets: %v", n, buckets)
				}
				if sum := s.GetHistogram().GetSampleSum(); sum < 30*5 || sum > 30*1000 {
					t.Errorf("30 answers have %v bytes", sum)
				}
			}
			if strings.Contains(page, "envoy_istio_") {
				t.Error("Envoy's names are on the page")
			}
			if families["envoy_server_uptime"] == nil || families["fairlead_agent_request_label_sets"] == nil {
				t.Errorf("other metrics of Envoy or the agent are missing:\n%s", strings.Join(slices.Sorted(maps.Keys(families)), "\n"))
			}
			m.envoy.NoRejections(t)
		})
	}
}

// TestConnectionsOfRealEnvoys: TCP connections are counted when they open and end, and their
// bytes while they are open.
func TestConnectionsOfRealEnvoys(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t) // or skip
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, version, usualClient)
			m.run(t)
			conn, err := net.Dial("tcp", m.outTCP)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			const size, chunks = 1000, 5
			for range chunks {
				if _, err := conn.Write(make([]byte, size)); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(conn, make([]byte, size)); err != nil {
					t.Fatal(err)
				}
			}
			// The listener was dialled once before, to see that it is there.
			from := []string{"reporter=source", "destination_workload=orders_tcp-v1", "destination_service=orders_tcp.shop", "request_protocol=tcp"}
			to := []string{"reporter=destination", "source_workload=frontend-7", "source_principal=" + clientID, "connection_security_policy=mutual_tls"}
			check := func(closed uint64) func() error {
				return func() error {
					families, _ := m.scrape(t)
					for _, labels := range [][]string{from, to} {
						for name, want := range map[string]uint64{
							"istio_tcp_connections_opened_total": 2, "istio_tcp_connections_closed_total": closed,
							"istio_tcp_sent_bytes_total": size * chunks, "istio_tcp_received_bytes_total": size * chunks,
						} {
							if n := total(families[name], labels...); n != want {
								return fmt.Errorf("%s of %s = %d, want %d", name, labels[0], n, want)
							}
						}
					}
					return nil
				}
			}
			envoytest.Eventually(t, envoytest.Patience, check(1))
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			envoytest.Eventually(t, envoytest.Patience, check(2))
		})
	}
}

// untilEntriesAreLost waits until Envoy has tried to deliver the entries of its access logs, and has
// found nobody.
func (m *mesh) untilEntriesAreLost(t *testing.T) {
	t.Helper()
	const failures = "cluster.als-grpc;.upstream_rq_503"
	logs := 2 // of connections, of each side
	if envoytest.Minor(t, m.version) < 37 {
		logs = 4 // and of requests
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if n := m.envoy.Stat(t, failures); n < logs {
			return fmt.Errorf("%s is %d, want %d", failures, n, logs)
		}
		return nil
	})
}

// TestWhatEnvoyDoesNotReport: what an Envoy drops at its limit of series, and what it sent while
// nobody listened, is in the overflow series of its side, so that the sums are what was sent.
func TestWhatEnvoyDoesNotReport(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t) // or skip
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			const asked, mine, others, dead, lines = 20, 7, 5, 3, 6
			m := &mesh{rig: newRig(t, nil), version: version, client: usualClient, maxCounters: 2}
			m.start(t)
			for range lines { // nobody listens yet; the listener itself was dialled before, too
				conn, err := net.Dial("tcp", m.outTCP)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				if err := conn.Close(); err != nil {
					t.Fatal(err)
				}
			}
			m.send(t, m.out, asked)
			m.send(t, m.plain, mine)
			m.send(t, m.out+"/none", others)
			m.send(t, m.dead, dead)
			m.untilEntriesAreLost(t)
			m.run(t)
			sums := func() string {
				families, _ := m.scrape(t)
				var out []uint64
				for _, side := range reporters() {
					for _, name := range []string{"istio_requests_total", "istio_tcp_connections_opened_total", "istio_tcp_connections_closed_total"} {
						out = append(out, total(families[name], "reporter="+string(side)))
					}
				}
				return fmt.Sprint(out)
			}
			want := fmt.Sprint([]uint64{asked + others + dead, lines + 1, lines + 1, asked + mine, lines + 1, lines + 1})
			envoytest.Eventually(t, 2*envoytest.Patience, func() error {
				if got := sums(); got != want {
					return fmt.Errorf("requests and connections of both sides: %s, want %s", got, want)
				}
				return nil
			})
			families, _ := m.scrape(t)
			dropped := total(families["istio_requests_total"], "reporter=source", "source_workload=overflow")
			if version != envoytest.Oldest && dropped != others+dead {
				t.Errorf("%d requests of the client are in the overflow series, want %d", dropped, others+dead)
			}
			m.send(t, m.out, asked)
			want = fmt.Sprint([]uint64{2*asked + others + dead, lines + 1, lines + 1, 2*asked + mine, lines + 1, lines + 1})
			envoytest.Eventually(t, 2*envoytest.Patience, func() error {
				if got := sums(); got != want {
					return fmt.Errorf("after more requests: %s, want %s", got, want)
				}
				return nil
			})
		})
	}
}

// TestRestartOfARealEnvoy: what was read before Envoy died counts on, whoever reads next.
func TestRestartOfARealEnvoy(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t) // or skip
	for _, version := range envoytest.Versions()[:1] {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, version, usualClient)
			counted := func(want uint64) func() error {
				return func() error {
					if _, err := m.read(t.Context(), requestsOnly, func(line []byte) {
						if !strings.HasPrefix(string(line), "#") {
							t.Errorf("the filter lets %q through", line)
						}
					}); err != nil {
						return err
					}
					var page strings.Builder
					if err := m.store.writeTo(&page); err != nil {
						return err
					}
					families := parsePage(t, page.String())
					for _, name := range []string{"istio_requests_total", "istio_response_bytes"} {
						if n := total(families[name], "reporter=source", "response_code=200"); n != want {
							return fmt.Errorf("%s = %d, want %d", name, n, want)
						}
					}
					return nil
				}
			}
			m.send(t, m.out, 10)
			envoytest.Eventually(t, envoytest.Patience, counted(10))
			m.envoy.Kill()
			m.process = Process{}
			if _, err := m.read(t.Context(), requestsOnly, nil); err == nil {
				t.Error("an Envoy that is dead was read")
			}
			m.start(t)
			m.send(t, m.out, 5)
			envoytest.Eventually(t, envoytest.Patience, counted(15))
		})
	}
}

// TestHostileNamesFromRealEnvoys: a name that the authority does not write is none, as Envoy
// escapes it, and never another label or line.
func TestHostileNamesFromRealEnvoys(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t) // or skip
	for _, name := range []string{`a"} 1`, `a\",reporter="source`, "a\nistio_requests_total 9", `a,O=b+c`, "a,OU=v1,OU=b,O=Fairlead", "é#<>"} {
		for _, version := range envoytest.Ends() {
			t.Run(version, func(t *testing.T) {
				t.Parallel()
				m := newMesh(t, version, name)
				m.run(t)
				m.send(t, m.out, 2)
				envoytest.Eventually(t, envoytest.Patience, func() error {
					families, page := m.scrape(t)
					if n := total(families["istio_requests_total"], "reporter=destination", "source_workload=unknown", "source_canonical_service=unknown", "source_principal="+clientID); n != 2 {
						return fmt.Errorf("%q: %d requests\n%s", name, n, page)
					}
					return nil
				})
				if families, _ := m.scrape(t); len(families["istio_requests_total"].GetMetric()) != 2 {
					t.Errorf("series: %v", families["istio_requests_total"])
				}
			})
		}
	}
}
