package traffic

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// names of the row's hosts.
const (
	frontHost = "front.shop.internal"
	backHost  = "back.shop.internal"
	// firstHost is the first by name of the services that have back's port 9080: it stands for all.
	firstHost = "retried.shop.internal"
)

// tcpLine is what each connection sends; it gets twice as much.
const tcpLine = "hello\n"

// quiet is longer than Envoy keeps what it has counted: entries of access logs for a second.
const quiet = 3 * time.Second

// compared is longer than an agent waits for what Envoy has to report, in seconds.
const compared = 25

// How often each request is made.
const (
	viaFront, missing    = 120, 30
	grpcOK, grpcNotFound = 40, 20
	connections          = 25
	plainHTTP, plainTCP  = 15, 10
)

// times does something n times, several at a time.
func (r *row) times(n int, ask func() error) {
	r.t.Helper()
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	slots := make(chan struct{}, 8)
	for range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := ask(); err != nil {
				failed.Store(&err)
			}
		})
	}
	if wg.Wait(); failed.Load() != nil {
		r.t.Fatal(*failed.Load())
	}
}

// gives asks for a status.
func (r *row) gives(address, host, path string, want int) func() error {
	return func() error {
		code, err := r.get(r.t.Context(), address, host, path)
		if err != nil || code != want {
			return fmt.Errorf("%s%s: %d, want %d: %w", host, path, code, want, err)
		}
		return nil
	}
}

// load makes all requests and connections, and checks the answers.
func (r *row) load() {
	r.t.Helper()
	client := r.at(11, 9080)
	r.times(viaFront, r.gives(client, frontHost, "/known", http.StatusOK))
	r.times(missing, r.gives(client, frontHost, "/missing", http.StatusNotFound))
	r.times(grpcOK, func() error { return r.invoke(codes.OK) })
	r.times(grpcNotFound, func() error { return r.invoke(codes.NotFound) })
	r.times(connections, func() error { return r.line(r.at(11, 9000)) })
	r.times(plainHTTP, r.gives(r.at(13, 9080), firstHost, "/known", http.StatusOK))
	r.times(plainTCP, func() error { return r.line(r.at(13, 9000)) })
	want := map[string]int{"/known": viaFront + plainHTTP, "/missing": missing, "gRPC 0": grpcOK, "gRPC 5": grpcNotFound}
	lines := connections + plainTCP + r.fail(want)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !maps.Equal(r.answered, want) {
		r.t.Fatalf("the application has answered %v, want %v", r.answered, want)
	}
	if want := lines * len(tcpLine); r.received != want {
		r.t.Fatalf("the application has received %d bytes, want %d", r.received, want)
	}
}

// labels are those of a series, as pairs of name and value. Later ones replace earlier ones.
func labelsOf(lists ...[]string) map[string]string {
	out := map[string]string{}
	for _, list := range lists {
		for i := 0; i+1 < len(list); i += 2 {
			out[list[i]] = list[i+1]
		}
	}
	return out
}

// endOf are the labels of a side, "source" or "destination": name, canonical service, revision,
// namespace, principal, app, version, cluster.
func endOf(side, name, service, revision, namespace, principal, app, version, cluster string) []string {
	return []string{
		side + "_workload", name, side + "_canonical_service", service, side + "_canonical_revision", revision, side + "_workload_namespace", namespace,
		side + "_principal", principal, side + "_app", app, side + "_version", version, side + "_cluster", cluster,
	}
}

// workload is a workload as its own agent knows it.
type workload struct{ name, service, revision, id, app, version string }

func workloads() (client, front, back workload) {
	return workload{"client", "client", "v1", clientID, "client", "v1"},
		workload{"front-v2", "front", "v2", "spiffe://cluster.local/ns/shop/sa/front", "front", "v2"},
		workload{"back", "back", "latest", "spiffe://cluster.local/ns/shop/sa/back", "back", unknown}
}

const unknown, cluster = "unknown", "Kubernetes"

// self are the labels of a workload that its own agent knows.
func self(side string, w workload) []string {
	return endOf(side, w.name, w.service, w.revision, "shop", w.id, w.app, w.version, cluster)
}

// peer are the labels of a workload that the other end's agent knows.
func peer(side string, w workload) []string {
	return endOf(side, w.name, w.service, w.revision, "shop", w.id, unknown, unknown, cluster)
}

func nobody(side string) []string {
	return endOf(side, unknown, unknown, "latest", unknown, unknown, unknown, unknown, unknown)
}

func service(host, namespace string) []string {
	return []string{"destination_service", host, "destination_service_name", host, "destination_service_namespace", namespace}
}

func answer(code, flags string) []string {
	return []string{"response_code", code, "response_flags", flags}
}

func isGRPC(status string) []string {
	return []string{"request_protocol", "grpc", "response_code", "200", "grpc_response_status", status}
}

func noCertificate() []string {
	return []string{"source_principal", unknown, "destination_principal", unknown}
}

// asClient and asServer are the labels of the reporters; later ones replace some.
func asClient() []string {
	return []string{"reporter", "source", "connection_security_policy", unknown, "request_protocol", "http", "grpc_response_status", "", "response_flags", "-"}
}

func asServer() []string {
	return []string{"reporter", "destination", "connection_security_policy", "mutual_tls", "request_protocol", "http", "grpc_response_status", "", "response_flags", "-"}
}

// fromNobody are the labels of what back got in plaintext.
func fromNobody() [][]string {
	_, _, back := workloads()
	return [][]string{asServer(), nobody("source"), self("destination", back), noCertificate(), {"connection_security_policy", "none"}}
}

func with(base [][]string, more ...[]string) [][]string { return append(slices.Clone(base), more...) }

// tally is what is to be counted: values by host and series.
type tally map[string]float64

func (c tally) add(host, metric string, n int, lists ...[]string) {
	s := meshtest.Sample{Name: metric, Labels: labelsOf(lists...)}
	if n != 0 {
		c[host+" "+strings.TrimSuffix(s.String(), " 0")] += float64(n)
	}
}

func (c tally) requests(host string, n int, lists ...[]string) {
	for _, metric := range []string{"istio_requests_total", "istio_request_duration_milliseconds_count", "istio_request_bytes_count", "istio_response_bytes_count"} {
		c.add(host, metric, n, lists...)
	}
}

// tcp counts connections that have carried so many lines in all.
func (c tally) tcp(host string, n, lines int, lists ...[]string) {
	labels := labelsOf(append(slices.Clone(lists), []string{"request_protocol", "tcp"})...)
	delete(labels, "grpc_response_status")
	delete(labels, "response_code")
	var list []string
	for name, value := range labels {
		list = append(list, name, value)
	}
	c.add(host, "istio_tcp_connections_opened_total", n, list)
	c.add(host, "istio_tcp_connections_closed_total", n, list)
	c.add(host, "istio_tcp_received_bytes_total", lines*len(tcpLine), list)
	c.add(host, "istio_tcp_sent_bytes_total", 2*lines*len(tcpLine), list)
}

// wanted is what all hosts have counted of a load.
func wanted(version string) tally {
	out := tally{}
	client, front, back := workloads()
	var certificates []string
	if version == envoytest.Oldest { // its access log does not have the server's certificate
		certificates = noCertificate()
	}
	toFront := [][]string{asClient(), self("source", client), peer("destination", front), service(frontHost, "shop"), certificates}
	atFront := [][]string{asServer(), peer("source", client), self("destination", front), service(frontHost, "shop")}
	frontToBack := [][]string{asClient(), self("source", front), peer("destination", back), service(backHost, "shop"), certificates}
	fromFront := [][]string{asServer(), peer("source", front), self("destination", back), service(backHost, "shop")}
	for code, n := range map[string]int{"200": viaFront, "404": missing} {
		out.requests("client", n, with(toFront, answer(code, "-"))...)
		out.requests("front", n, with(atFront, answer(code, "-"))...)
		out.requests("front", n, with(frontToBack, answer(code, "-"))...)
		out.requests("back", n, with(fromFront, answer(code, "-"))...)
	}
	toBack := [][]string{asClient(), self("source", client), peer("destination", back), service(backHost, "shop"), certificates}
	fromClient := [][]string{asServer(), peer("source", client), self("destination", back), service(backHost, "shop")}
	for status, n := range map[string]int{"0": grpcOK, "5": grpcNotFound} {
		out.requests("client", n, with(toBack, isGRPC(status))...)
		out.requests("back", n, with(fromClient, isGRPC(status))...)
	}
	out.tcp("client", connections, connections, with(toBack, noCertificate())...)
	out.tcp("back", connections, connections, fromClient...)
	out.tcp("back", plainTCP, plainTCP, with(fromNobody(), service(backHost, "shop"))...)
	out.requests("back", plainHTTP, with(fromNobody(), service(firstHost, "shop"), answer("200", "-"))...)
	out.failures(version)
	return out
}

// differences are the series that have another value than wanted.
func differences(want, got map[string]float64) string {
	var lines []string
	for series, n := range want {
		if got[series] != n {
			lines = append(lines, fmt.Sprintf("%s: want %v, got %v", series, n, got[series]))
		}
	}
	for series, n := range got {
		if _, ok := want[series]; !ok {
			lines = append(lines, fmt.Sprintf("%s: unexpected, %v", series, n))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestExactMetrics: each metric of a run is what the clients and the applications have counted,
// label by label, and there is no other: over HTTP, gRPC and TCP, with mTLS and in plaintext, and
// what fails, in each of these ways, with its flag.
func TestExactMetrics(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			r := startRow(t, version)
			before := r.rest()
			r.mu.Lock()
			clear(r.answered)
			r.received = 0
			r.mu.Unlock()
			r.load()
			want := map[string]float64(wanted(version))
			var got map[string]float64
			envoytest.Eventually(t, envoytest.Patience, func() error {
				now, err := r.counted()
				if err != nil {
					return err
				}
				if got = changed(before, now); !maps.Equal(got, want) {
					return errors.New("not yet:\n" + differences(want, got))
				}
				return nil
			})
			// And nothing comes to be missed: the agents compare with what Envoy had begun a while ago.
			for i, every := 0, time.Tick(time.Second); i < compared; i, _ = i+1, <-every {
				now, err := r.counted()
				if err != nil {
					t.Fatal(err)
				}
				if got := changed(before, now); !maps.Equal(got, want) {
					t.Fatal(differences(want, got))
				}
			}
		})
	}
}
