package traffic

import (
	"context"
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

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// names of the row's hosts.
const (
	frontHost = "front.shop.internal"
	backHost  = "back.shop.internal"
	fullHost  = "full.shop.internal"
)

// tcpLine is what each connection sends; it gets twice as much.
const tcpLine = "hello\n"

// quiet is longer than Envoy keeps what it has counted: entries of access logs for a second.
const quiet = 3 * time.Second

// compared is longer than an agent waits for what Envoy has to report, in seconds.
const compared = 25

// How often each request is made.
const (
	viaFront, missing        = 120, 30
	grpcOK, grpcNotFound     = 40, 20
	connections              = 25
	plainHTTP, plainTCP      = 15, 10
	overflowing, unhealthy   = 12, 11
	retried, retries         = 9, 2
	noRoute, refused, resets = 8, 7, 6
)

// load makes all requests, several at a time where they do not depend on each other, and checks the
// answers.
func (r *row) load() {
	r.t.Helper()
	times := func(n int, ask func() error) {
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
	gives := func(address, host, path string, want int) func() error {
		return func() error {
			code, err := r.get(r.t.Context(), address, host, path)
			if err != nil || code != want {
				return fmt.Errorf("%s%s: %d, want %d: %w", host, path, code, want, err)
			}
			return nil
		}
	}
	client := r.at(11, 9080)
	times(viaFront, gives(client, frontHost, "/known", http.StatusOK))
	times(missing, gives(client, frontHost, "/missing", http.StatusNotFound))
	times(grpcOK, func() error { return r.invoke(codes.OK) })
	times(grpcNotFound, func() error { return r.invoke(codes.NotFound) })
	times(connections, func() error { return r.line(r.at(11, 9000)) })
	times(plainHTTP, gives(r.at(13, 9080), "retried.shop.internal", "/known", http.StatusOK))
	times(plainTCP, func() error { return r.line(r.at(13, 9000)) })
	times(unhealthy, gives(client, "nobody.shop.internal", "/", http.StatusServiceUnavailable))
	times(retried, gives(client, "retried.shop.internal", "/fail", http.StatusServiceUnavailable))
	times(noRoute, gives(client, "routes.shop.internal", "/unknown", http.StatusNotFound))
	times(refused, gives(client, "gone.shop.internal", "/", http.StatusServiceUnavailable))

	var held sync.WaitGroup
	holding := func(n int64) {
		envoytest.Eventually(r.t, envoytest.Patience, func() error {
			if now := r.held.Load(); now != n {
				return fmt.Errorf("%d requests are held", now)
			}
			return nil
		})
	}
	held.Go(func() {
		if err := gives(r.at(11, 9082), fullHost, "/hold", http.StatusOK)(); err != nil {
			r.t.Error(err)
		}
	})
	holding(1)
	times(overflowing, gives(r.at(11, 9082), fullHost, "/known", http.StatusServiceUnavailable))
	close(r.release)
	held.Wait()
	r.release = make(chan struct{})
	for range resets {
		ctx, cancel := context.WithCancel(r.t.Context())
		held.Go(func() {
			if code, err := r.get(ctx, client, "retried.shop.internal", "/hold"); !errors.Is(err, context.Canceled) {
				r.t.Errorf("a request that was cancelled: %d, %v", code, err)
			}
		})
		holding(1)
		cancel()
		held.Wait()
		holding(0)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if want := map[string]int{"/known": viaFront + plainHTTP, "/missing": missing, "/fail": retried * (1 + retries), "/hold": 1 + resets}; !maps.Equal(r.answered, want) {
		r.t.Fatalf("the application has answered %v, want %v", r.answered, want)
	}
	if want := (connections + plainTCP) * len(tcpLine); r.received != want {
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

// wanted is what all hosts have counted of a load.
func (r *row) wanted(version string) map[string]float64 {
	const unknown, cluster, frontID = "unknown", "Kubernetes", "spiffe://cluster.local/ns/shop/sa/front"
	const backID = "spiffe://cluster.local/ns/shop/sa/back"
	out := map[string]float64{}
	add := func(host, metric string, n int, lists ...[]string) {
		s := meshtest.Sample{Name: metric, Labels: labelsOf(lists...)}
		out[host+" "+strings.TrimSuffix(s.String(), " 0")] += float64(n)
	}
	requests := func(host string, n int, lists ...[]string) {
		for _, metric := range []string{"istio_requests_total", "istio_request_duration_milliseconds_count", "istio_request_bytes_count", "istio_response_bytes_count"} {
			add(host, metric, n, lists...)
		}
	}
	tcp := func(host string, n int, lists ...[]string) {
		add(host, "istio_tcp_connections_opened_total", n, lists...)
		add(host, "istio_tcp_connections_closed_total", n, lists...)
		add(host, "istio_tcp_received_bytes_total", n*len(tcpLine), lists...)
		add(host, "istio_tcp_sent_bytes_total", 2*n*len(tcpLine), lists...)
	}
	service := func(host, namespace string) []string {
		return []string{"destination_service", host, "destination_service_name", host, "destination_service_namespace", namespace}
	}
	// As its own agent knows a workload, with and without a certificate; and as the other end does.
	type workload struct{ name, service, revision, id, app, version string }
	client, front, back := workload{"client", "client", "v1", clientID, "client", "v1"}, workload{"front-v2", "front", "v2", frontID, "front", "v2"}, workload{"back", "back", "latest", backID, "back", unknown}
	self := func(side string, w workload) []string {
		return endOf(side, w.name, w.service, w.revision, "shop", w.id, w.app, w.version, cluster)
	}
	peer := func(side string, w workload) []string {
		return endOf(side, w.name, w.service, w.revision, "shop", w.id, unknown, unknown, cluster)
	}
	nobody := func(side string) []string {
		return endOf(side, unknown, unknown, "latest", unknown, unknown, unknown, unknown, unknown)
	}
	noCertificate := []string{"source_principal", unknown, "destination_principal", unknown}
	source := []string{"reporter", "source", "connection_security_policy", unknown, "request_protocol", "http", "grpc_response_status", "", "response_flags", "-"}
	destination := []string{"reporter", "destination", "connection_security_policy", "mutual_tls", "request_protocol", "http", "grpc_response_status", "", "response_flags", "-"}
	plain := append(slices.Clone(noCertificate), "connection_security_policy", "none")
	answer := func(code, flags string) []string { return []string{"response_code", code, "response_flags", flags} }
	isGRPC := func(status string) []string {
		return []string{"request_protocol", "grpc", "response_code", "200", "grpc_response_status", status}
	}
	certificates := []string{}
	if version == envoytest.Oldest { // its access log does not have the server's certificate
		certificates = noCertificate
	}

	toFront := [][]string{source, self("source", client), peer("destination", front), service(frontHost, "shop"), certificates}
	atFront := [][]string{destination, peer("source", client), self("destination", front), service(frontHost, "shop")}
	frontToBack := [][]string{source, self("source", front), peer("destination", back), service(backHost, "shop"), certificates}
	fromFront := [][]string{destination, peer("source", front), self("destination", back), service(backHost, "shop")}
	with := func(base [][]string, more ...[]string) [][]string { return append(slices.Clone(base), more...) }
	for code, n := range map[string]int{"200": viaFront, "404": missing} {
		requests("client", n, with(toFront, answer(code, "-"))...)
		requests("front", n, with(atFront, answer(code, "-"))...)
		requests("front", n, with(frontToBack, answer(code, "-"))...)
		requests("back", n, with(fromFront, answer(code, "-"))...)
	}
	toBack := [][]string{source, self("source", client), peer("destination", back), service(backHost, "shop"), certificates}
	fromClient := [][]string{destination, peer("source", client), self("destination", back), service(backHost, "shop")}
	for status, n := range map[string]int{"0": grpcOK, "5": grpcNotFound} {
		requests("client", n, with(toBack, isGRPC(status))...)
		requests("back", n, with(fromClient, isGRPC(status))...)
	}

	overTCP := []string{"request_protocol", "tcp"}
	withoutCode := func(base [][]string) [][]string {
		l := labelsOf(base...)
		delete(l, "grpc_response_status")
		delete(l, "response_code")
		var list []string
		for name, value := range l {
			list = append(list, name, value)
		}
		return [][]string{list}
	}
	tcp("client", connections, withoutCode(with(toBack, noCertificate, overTCP))...)
	tcp("back", connections, withoutCode(with(fromClient, overTCP))...)
	fromNobody := [][]string{destination, nobody("source"), self("destination", back), plain}
	tcp("back", plainTCP, withoutCode(with(fromNobody, service(backHost, "shop"), overTCP))...)
	// Two services have this port of the workload: the first by name stands for it.
	const first = "retried.shop.internal"
	requests("back", plainHTTP, with(fromNobody, service(first, "shop"), answer("200", "-"))...)

	failing := func(host string) [][]string {
		return [][]string{source, self("source", client), peer("destination", back), service(host, "shop"), certificates}
	}
	atBack := [][]string{destination, peer("source", client), self("destination", back), service(first, "shop")}
	requests("client", overflowing, with(failing(fullHost), noCertificate, answer("503", "UO"))...)
	requests("client", 1, with(failing(fullHost), answer("200", "-"))...)
	requests("back", 1, with(atBack, service(fullHost, "shop"), answer("200", "-"))...)
	requests("client", retried, with(failing("retried.shop.internal"), answer("503", "URX"))...)
	requests("back", retried*(1+retries), with(atBack, answer("503", "-"))...)
	requests("client", resets, with(failing("retried.shop.internal"), answer("0", "DC"))...)
	requests("back", resets, with(atBack, answer("0", "DC"))...)
	nowhere := [][]string{source, self("source", client), nobody("destination"), noCertificate}
	whom := "nobody.shop.internal"
	if version == envoytest.Oldest { // an entry of its access log has the cluster of an endpoint only
		whom = unknown
	}
	requests("client", unhealthy, with(nowhere, service(whom, unknown), answer("503", "UH"))...)
	requests("client", noRoute, with(nowhere, service(unknown, unknown), answer("404", "NR"))...)
	gone := endOf("destination", "gone", "gone", "latest", "shop", unknown, unknown, unknown, cluster)
	requests("client", refused, with(nowhere, gone, service("gone.shop.internal", "shop"), answer("503", "UF"))...)
	return out
}

// TestExactMetrics: each metric of a run is what the clients and the applications have counted,
// label by label, and there is no other: over HTTP, gRPC and TCP, with mTLS and in plaintext, and
// what fails, with its flag.
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
			want := r.wanted(version)
			var got map[string]float64
			envoytest.Eventually(t, envoytest.Patience, func() error {
				now, err := r.counted()
				if err != nil {
					return err
				}
				if got = changed(before, now); !maps.Equal(got, want) {
					return errors.New("not yet: " + cmp.Diff(want, got))
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
					t.Fatal(cmp.Diff(want, got))
				}
			}
		})
	}
}
