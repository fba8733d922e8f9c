package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// way is how requests that fail are sent.
type way struct{ grpc, plain bool }

func ways() []way {
	return []way{{false, false}, {false, true}, {true, false}, {true, true}}
}

// host is a service that fails: there is each of them with mTLS and in plaintext.
func (w way) host(name string) string {
	if w.plain {
		name = "unsafe-" + name
	}
	return name + ".shop.internal"
}

func (w way) port(http int) int {
	if w.grpc {
		return http + 10
	}
	return http
}

// retries are those of the service that is retried.
const retries = 2

// failure is a way for requests to fail.
type failure struct {
	flag, host, path string
	port             int // for HTTP
	times            int
	code             int // of HTTP
	status           codes.Code
}

// Failures by Envoy's flag. "UF, server" is one at the server: its application is away.
func failures() []failure {
	const unavailable = http.StatusServiceUnavailable
	return []failure{
		{"UH", "nobody", "/", 9080, 11, unavailable, codes.Unavailable},
		{"URX", "retried", "/fail", 9080, 9, unavailable, codes.Unavailable},
		{"NR", "routes", "/other", 9080, 8, http.StatusNotFound, codes.Unimplemented},
		{"UF", "gone", "/", 9080, 7, unavailable, codes.Unavailable},
		{"UF, server", "down", "/", 9083, 5, unavailable, codes.Unavailable},
		{"UO", "full", "/known", 9082, 12, unavailable, codes.Unavailable},
		{"DC", "retried", "/hold", 9080, 6, 0, codes.Canceled},
	}
}

// tcpFailure is a way for connections to fail.
type tcpFailure struct {
	flag, host  string
	port, times int // with mTLS; in plaintext there are ten more to the port
}

func tcpFailures() []tcpFailure {
	return []tcpFailure{{"UF,URX", "gone", 9001, 4}, {"UH", "nobody", 9002, 3}, {"UO", "narrow", 9003, 2}}
}

// failing are the manifests of the services that fail, with mTLS or without.
func failing(w way) string {
	const entry = `
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: shop}
spec:
  hosts: [%[2]s]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [%[3]s]
  workloadSelector: {labels: {app: %[4]s}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: shop}
spec:
  hosts: [%[2]s]
  http:
  - retries: %[5]s
    match: [{uri: %[6]s}]
    route: [{destination: {host: %[2]s}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %[1]s, namespace: shop}
spec:
  host: %[2]s
  trafficPolicy: {tls: {mode: %[7]s}, connectionPool: %[8]s}
`
	mode := "ISTIO_MUTUAL"
	if w.plain {
		mode = "DISABLE"
	}
	const never, all, usual = "{attempts: 0}", "{prefix: /}", "{tcp: {connectTimeout: 10s}}"
	var out strings.Builder
	for _, s := range []struct{ name, app, port, retries, match, pool string }{
		{"nobody", "nobody", "0", never, all, usual},
		{"retried", "back", "0", fmt.Sprintf(`{attempts: %d, retryOn: "5xx,unavailable"}`, retries), all, usual},
		{"routes", "back", "0", never, "{exact: /known}", usual},
		{"gone", "gone", "0", never, all, usual},
		{"down", "back", "3", never, all, usual},
		{"full", "back", "2", never, all, "{http: {http2MaxRequests: 1}}"},
		{"narrow", "back", "4", never, all, "{tcp: {maxConnections: 1}}"},
	} {
		ports := []string{fmt.Sprintf("{number: 908%[1]s, name: http, protocol: HTTP}, {number: 909%[1]s, name: grpc, protocol: GRPC}", s.port)}
		for _, f := range tcpFailures() {
			if f.host == s.name {
				ports = append(ports, fmt.Sprintf("{number: %d, name: tcp, protocol: TCP}", tcpPort(w, f)))
			}
		}
		host := w.host(s.name)
		name, _, _ := strings.Cut(host, ".")
		fmt.Fprintf(&out, entry, name, host, strings.Join(ports, ", "), s.app, s.retries, s.match, mode, s.pool)
	}
	return out.String()
}

// meets makes a request that has to fail as it says.
func (r *row) meets(w way, f failure) error {
	address, host := r.at(11, w.port(f.port)), w.host(f.host)
	if !w.grpc {
		return r.gives(address, host, f.path, f.code)()
	}
	err := r.call(r.t.Context(), address, host, f.path, codes.Unavailable)
	if status.Code(err) != f.status {
		return fmt.Errorf("gRPC to %s: %w, want %s", host, err, f.status)
	}
	return nil
}

// failing says whether the services that fail do.
func (r *row) failing() error {
	for _, w := range ways() {
		for _, f := range failures() {
			var err error
			switch {
			case f.flag != "UO" && f.flag != "DC":
				err = r.meets(w, f)
			case w.grpc:
				err = r.call(r.t.Context(), r.at(11, w.port(f.port)), w.host(f.host), "/known", codes.OK)
			default:
				err = r.gives(r.at(11, w.port(f.port)), w.host(f.host), "/known", http.StatusOK)()
			}
			if err != nil {
				return fmt.Errorf("%s: %w", f.flag, err)
			}
		}
		if w.grpc {
			continue
		}
		for _, f := range tcpFailures() {
			if f.flag == "UO" {
				if err := r.line(r.at(11, tcpPort(w, f))); err != nil {
					return err
				}
			} else if err := r.cut(r.at(11, tcpPort(w, f))); err != nil {
				return err
			}
		}
	}
	return nil
}

func tcpPort(w way, f tcpFailure) int {
	if w.plain {
		return f.port + 10
	}
	return f.port
}

// cut makes a connection that Envoy has to end, and sends nothing.
func (r *row) cut(address string) error {
	c, err := dial(r.t.Context(), address, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	if n, err := io.Copy(io.Discard, c); n != 0 || err != nil && !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%d bytes, %w", n, err)
	}
	return nil
}

// holding waits until so many requests are held.
func (r *row) holding(n int64) {
	r.t.Helper()
	envoytest.Eventually(r.t, envoytest.Patience, func() error {
		if now := r.held.Load(); now != n {
			return fmt.Errorf("%d requests are held", now)
		}
		return nil
	})
}

// fail makes what fails, adds what the application answers thereby, and returns how many lines it
// gets over TCP.
func (r *row) fail(answered map[string]int) (lines int) {
	r.t.Helper()
	for _, w := range ways() {
		for _, f := range failures() {
			count := func(code string, n int) {
				if !w.grpc {
					code = f.path
				}
				answered[code] += n
			}
			switch f.flag {
			case "UO":
				r.overflow(w, f)
				f.path = "/hold"
				count("gRPC 0", 1)
			case "DC":
				r.leave(w, f)
				count("gRPC 1", f.times)
			default:
				r.times(f.times, func() error { return r.meets(w, f) })
				if f.flag == "URX" {
					count("gRPC 14", f.times*(1+retries))
				}
			}
		}
		if w.grpc {
			continue
		}
		for _, f := range tcpFailures() {
			address := r.at(11, tcpPort(w, f))
			if f.flag != "UO" {
				r.times(f.times, func() error { return r.cut(address) })
				continue
			}
			// A line of the one connection that there may be.
			if err := r.during(address, func() { r.times(f.times, func() error { return r.cut(address) }) }); err != nil {
				r.t.Fatal(err)
			}
			lines++
		}
	}
	return lines
}

// overflow makes requests beside one that is all that is allowed.
func (r *row) overflow(w way, f failure) {
	r.t.Helper()
	address, host := r.at(11, w.port(f.port)), w.host(f.host)
	var held sync.WaitGroup
	held.Go(func() {
		hold := r.gives(address, host, "/hold", http.StatusOK)
		if w.grpc {
			hold = func() error { return r.call(r.t.Context(), address, host, "/hold", codes.OK) }
		}
		if err := hold(); err != nil {
			r.t.Error(err)
		}
	})
	r.holding(1)
	r.times(f.times, func() error { return r.meets(w, f) })
	close(r.release)
	held.Wait()
	r.holding(0)
	r.release = make(chan struct{})
}

// leave makes requests whose client leaves before the answer.
func (r *row) leave(w way, f failure) {
	r.t.Helper()
	address, host := r.at(11, w.port(f.port)), w.host(f.host)
	for range f.times {
		ctx, cancel := context.WithCancel(r.t.Context())
		var held sync.WaitGroup
		held.Go(func() {
			if w.grpc {
				if err := r.call(ctx, address, host, "/hold", codes.OK); status.Code(err) != codes.Canceled {
					r.t.Errorf("a call that was cancelled: %v", err)
				}
			} else if code, err := r.get(ctx, address, host, "/hold"); !errors.Is(err, context.Canceled) {
				r.t.Errorf("a request that was cancelled: %d, %v", code, err)
			}
		})
		r.holding(1)
		cancel()
		held.Wait()
		r.holding(0)
	}
}

// is the result of a request. A gRPC request has its status in the answer, which is an HTTP one
// of 200.
func (w way) is(code int, s codes.Code, flags string) [][]string {
	if w.grpc {
		return [][]string{isGRPC(strconv.Itoa(int(s))), {"response_flags", flags}}
	}
	return [][]string{answer(strconv.Itoa(code), flags)}
}

// sent are the labels of the client for what back gets. Envoy 1.36 does not say the certificates.
func (w way) sent(host string, oldest bool) [][]string {
	client, _, back := workloads()
	var certificates []string
	if w.plain || oldest {
		certificates = noCertificate()
	}
	return [][]string{asClient(), self("source", client), peer("destination", back), service(w.host(host), "shop"), certificates}
}

// got are the labels of back.
func (w way) got(host string) [][]string {
	client, _, back := workloads()
	if w.plain {
		return with(fromNobody(), service(host, "shop"))
	}
	return [][]string{asServer(), peer("source", client), self("destination", back), service(host, "shop")}
}

// nowhere are the labels of the client for what nobody gets.
func nowhere() [][]string {
	client, _, _ := workloads()
	return [][]string{asClient(), self("source", client), nobody("destination"), noCertificate()}
}

// gone are those of the workload that is away.
func gone() []string {
	return endOf("destination", "gone", "gone", "latest", "shop", unknown, unknown, unknown, cluster)
}

// failures adds what is counted of what fails.
func (c tally) failures(version string) {
	for _, w := range ways() {
		for _, f := range failures() {
			c.failure(w, f, version == envoytest.Oldest)
		}
		if w.grpc {
			continue
		}
		for _, f := range tcpFailures() {
			flags := []string{"response_flags", f.flag}
			switch f.flag {
			case "UF,URX":
				c.tcp("client", f.times, 0, with(nowhere(), gone(), service(w.host(f.host), "shop"), flags)...)
			case "UO":
				c.tcp("client", 1, 1, with(w.sent(f.host, true))...)
				c.tcp("back", 1, 1, w.got(w.host(f.host))...)
				fallthrough
			default: // an entry of the access log has the cluster of an endpoint only
				c.tcp("client", f.times, 0, with(nowhere(), service(unknown, unknown), flags)...)
			}
		}
	}
}

func (c tally) failure(w way, f failure, oldest bool) {
	result := w.is(f.code, f.status, f.flag)
	first := firstHost
	if w.grpc {
		first = backHost
	}
	switch f.flag {
	case "UH":
		whom := w.host(f.host)
		if oldest { // an entry of its access log has the cluster of an endpoint only
			whom = unknown
		}
		c.requests("client", f.times, with(nowhere(), append(result, service(whom, unknown))...)...)
	case "NR":
		c.requests("client", f.times, with(nowhere(), append(result, service(unknown, unknown))...)...)
	case "UF":
		c.requests("client", f.times, with(nowhere(), append(result, gone(), service(w.host(f.host), "shop"))...)...)
	case "URX":
		c.requests("client", f.times, with(w.sent(f.host, oldest), result...)...)
		c.requests("back", f.times*(1+retries), with(w.got(first), w.is(f.code, f.status, "-")...)...)
	case "UF, server":
		c.requests("client", f.times, with(w.sent(f.host, oldest), w.is(f.code, f.status, "-")...)...)
		flags := "UF,URX" // over HTTP/1.1 it has tried again
		if w.grpc {
			flags = "UF"
		}
		c.requests("back", f.times, with(w.got(way{}.host(f.host)), w.is(f.code, f.status, flags)...)...)
	case "UO":
		c.requests("client", f.times, with(w.sent(f.host, true), result...)...)
		c.requests("client", 1, with(w.sent(f.host, oldest), w.is(http.StatusOK, codes.OK, "-")...)...)
		c.requests("back", 1, with(w.got(way{}.host(f.host)), w.is(http.StatusOK, codes.OK, "-")...)...)
	case "DC":
		flags := "DC"
		if w.grpc { // its client resets the stream, and the connection stays
			flags = "DR"
		}
		// Without an answer, nothing says that a request was gRPC.
		c.requests("client", f.times, with(w.sent(f.host, oldest), answer("0", flags))...)
		c.requests("back", f.times, with(w.got(first), answer("0", flags))...)
	}
}

// TestFailuresHaveAllFlags: the failures of the row are those that Istio's dashboards show.
func TestFailuresHaveAllFlags(t *testing.T) {
	t.Parallel()
	missing := []string{"UO", "UH", "URX", "NR", "DC", "UF"}
	for _, f := range failures() {
		missing = slices.DeleteFunc(missing, func(flag string) bool { return flag == f.flag })
	}
	if len(missing) > 0 {
		t.Errorf("nothing fails with %v", missing)
	}
}
