package traffic

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// row is a mesh of three services in a row whose applications are the test itself, so that both
// ends count what the mesh counts.
type row struct {
	*meshtest.Mesh
	t     *testing.T
	hosts []meshtest.Host
	http  *http.Client
	conn  *grpc.ClientConn // to back
	// clientAgent is the agent of the client.
	clientAgent *meshtest.Process

	// held are the requests that back holds; release ends them.
	held    atomic.Int64
	release chan struct{}
	// asked are the requests of the client, and lines the connections, that were answered.
	asked, lines atomic.Int64
	// answered is what back's application has answered, by path.
	mu       sync.Mutex
	answered map[string]int
	received int // bytes over TCP
}

// names of the row's hosts.
const (
	frontHost = "front.shop.internal"
	backHost  = "back.shop.internal"
	fullHost  = "full.shop.internal"
)

// startRow starts a row with Envoys of a version, and with agents that have further arguments.
func startRow(t *testing.T, version string, args ...string) *row {
	t.Helper()
	r := &row{
		Mesh: meshtest.New(t, "internal/e2e/traffic/testdata/exact", map[string]int{"front": 18081, "http": 18082, "grpc": 18083, "tcp": 18084}),
		t:    t, release: make(chan struct{}), answered: map[string]int{},
	}
	binary := envoytest.BinaryVersion(t, version)
	config := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(config, []byte("defaultProviders: {metrics: [prometheus]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.StartServer("--mesh-config", config)
	r.serve()
	for i, name := range []string{"client", "front", "back"} {
		h := meshtest.Host{Name: name, Workload: "shop/" + name, Address: 11 + i}
		h.Agent = append([]string{"--drain-time", "1s", "--envoy", binary, "--http-address", r.AgentHTTP(h.Address)}, args...)
		r.hosts = append(r.hosts, h)
		_, agent := r.StartHost(h)
		if name == "client" {
			r.clientAgent = agent
		}
	}
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	r.http = &http.Client{Transport: tr, Timeout: envoytest.Patience}
	conn, err := grpc.NewClient("passthrough:///"+r.at(11, 9090), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(backHost))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r.conn = conn
	r.ready()
	return r
}

// ready waits until each way of the load works.
func (r *row) ready() {
	r.t.Helper()
	r.AwaitLive("client", "front", "back")
	settle(r.t, func() error {
		for _, host := range []string{frontHost, "retried.shop.internal", "routes.shop.internal"} {
			if code, err := r.get(r.t.Context(), r.at(11, 9080), host, "/known"); err != nil || code != http.StatusOK {
				return fmt.Errorf("%s: %d %w", host, code, err)
			}
		}
		if code, err := r.get(r.t.Context(), r.at(11, 9082), fullHost, "/known"); err != nil || code != http.StatusOK {
			return fmt.Errorf("full: %d %w", code, err)
		}
		if code, err := r.get(r.t.Context(), r.at(11, 9080), "gone.shop.internal", "/"); err != nil || code != http.StatusServiceUnavailable {
			return fmt.Errorf("gone: %d %w", code, err)
		}
		if err := r.invoke(codes.OK); err != nil {
			return err
		}
		return errors.Join(r.line(r.at(11, 9000)), r.line(r.at(13, 9000)))
	})
}

func (r *row) at(host, port int) string { return net.JoinHostPort(r.Address(host), strconv.Itoa(port)) }

// serve runs the applications of front and back.
func (r *row) serve() {
	r.t.Helper()
	front := http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		code, err := r.get(in.Context(), r.at(12, 9081), backHost, in.URL.Path)
		if err != nil {
			code = http.StatusBadGateway
		}
		w.WriteHeader(code)
	})
	back := http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		r.mu.Lock()
		r.answered[in.URL.Path]++
		r.mu.Unlock()
		switch in.URL.Path {
		case "/hold":
			r.held.Add(1)
			defer r.held.Add(-1)
			select {
			case <-r.release:
			case <-in.Context().Done():
			}
		case "/fail":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/missing":
			w.WriteHeader(http.StatusNotFound)
		}
	})
	for name, handler := range map[string]http.Handler{"front": front, "http": back} {
		s := httptest.NewUnstartedServer(handler)
		s.Listener = r.listen(name)
		s.Start()
		r.t.Cleanup(s.Close)
	}
	g := grpc.NewServer(grpc.UnknownServiceHandler(answerStatus))
	lis := r.listen("grpc")
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Serve(lis) })
	tcp := r.listen("tcp")
	wg.Go(func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { r.echo(c) })
		}
	})
	r.t.Cleanup(func() {
		g.Stop()
		_ = tcp.Close()
		wg.Wait()
	})
}

func (r *row) listen(name string) net.Listener {
	r.t.Helper()
	l, err := (&net.ListenConfig{}).Listen(r.t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", r.Port(name)))
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

// answerStatus answers with the status that the request names: with a message for OK, so that the
// status is in trailers, and else with trailers only.
func answerStatus(_ any, s grpc.ServerStream) error {
	md, _ := metadata.FromIncomingContext(s.Context())
	var in structpb.Struct
	if err := s.RecvMsg(&in); err != nil {
		return err
	}
	if want := md.Get("want"); len(want) == 1 && want[0] != "0" {
		var code codes.Code
		if err := code.UnmarshalJSON([]byte(want[0])); err != nil {
			return err
		}
		return status.Error(code, "as asked")
	}
	return s.SendMsg(&in)
}

// echo answers each line with itself, twice.
func (r *row) echo(c net.Conn) {
	defer c.Close()
	lines := bufio.NewReader(c)
	for {
		line, err := lines.ReadString('\n')
		r.mu.Lock()
		r.received += len(line)
		r.mu.Unlock()
		if err != nil {
			return
		}
		if _, err := io.WriteString(c, line+line); err != nil {
			return
		}
	}
}

// get asks once and gives the status.
func (r *row) get(ctx context.Context, address, host, path string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		return 0, err
	}
	req.Host = host
	res, err := r.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if strings.HasPrefix(address, r.Address(11)+":") {
		r.asked.Add(1)
	}
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}

// invoke calls back over gRPC for a status.
func (r *row) invoke(want codes.Code) error {
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	err := r.conn.Invoke(metadata.AppendToOutgoingContext(ctx, "want", strconv.Itoa(int(want))), "/shop.Inventory/Stock", &structpb.Struct{}, &structpb.Struct{})
	if status.Code(err) != want {
		return fmt.Errorf("gRPC: %w, want %s", err, want)
	}
	r.asked.Add(1)
	return nil
}

// tcpLine is what each connection sends; it gets twice as much.
const tcpLine = "hello\n"

// line makes a connection, sends a line, reads the answer, and ends.
func (r *row) line(address string) error {
	c, err := dial(r.t.Context(), address, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.WriteString(c, tcpLine); err != nil {
		return err
	}
	got := make([]byte, 2*len(tcpLine))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != tcpLine+tcpLine {
		return fmt.Errorf("%q: %w", got, err)
	}
	r.lines.Add(1)
	return nil
}

// counted are the metrics of requests and connections of all hosts, as "host name{labels}".
func (r *row) counted() (map[string]float64, error) {
	out := map[string]float64{}
	for _, h := range r.hosts {
		samples, err := r.Metrics(h.Address)
		if err != nil {
			return nil, err
		}
		for _, s := range samples.Matching("istio_") {
			if strings.HasPrefix(s.Name, "istio_agent_") {
				continue // of the agent itself
			}
			if strings.HasSuffix(s.Name, "_total") || strings.HasSuffix(s.Name, "_count") {
				name := s
				name.Value = 0
				out[h.Name+" "+strings.TrimSuffix(name.String(), " 0")] = s.Value
			}
		}
	}
	return out, nil
}

// changed is what was counted since before.
func changed(before, now map[string]float64) map[string]float64 {
	out := map[string]float64{}
	for series, n := range now {
		if d := n - before[series]; d != 0 {
			out[series] = d
		}
	}
	for series, n := range before {
		if _, ok := now[series]; !ok {
			out[series] = -n
		}
	}
	return out
}

// quiet is longer than Envoy keeps what it has counted: entries of access logs for a second.
const quiet = 3 * time.Second

// rest is what is counted once everything that was answered is, histograms too, which come with the
// next flush of Envoy, and nothing changes any more.
func (r *row) rest() map[string]float64 {
	r.t.Helper()
	var last map[string]float64
	var began time.Time
	envoytest.Eventually(r.t, 2*envoytest.Patience, func() error {
		now, err := r.counted()
		if err != nil {
			return err
		}
		if !maps.Equal(now, last) {
			changes := changed(last, now)
			last, began = now, time.Now()
			return fmt.Errorf("counters change: %v", changes)
		}
		sums := map[string]float64{}
		for series, n := range now {
			name, _, _ := strings.Cut(series, "{")
			sums[name] += n
		}
		r.mu.Lock()
		answered := 0
		for _, n := range r.answered {
			answered += n
		}
		r.mu.Unlock()
		for name, least := range map[string]int64{
			"client istio_requests_total": r.asked.Load(), "back istio_requests_total": int64(answered), "back istio_tcp_connections_opened_total": r.lines.Load(),
		} {
			if sums[name] < float64(least) {
				return fmt.Errorf("%s: %v of %d", name, sums[name], least)
			}
		}
		for _, h := range r.hosts {
			for _, same := range [][2]string{
				{"istio_requests_total", "istio_request_duration_milliseconds_count"},
				{"istio_requests_total", "istio_request_bytes_count"},
				{"istio_requests_total", "istio_response_bytes_count"},
				{"istio_tcp_connections_opened_total", "istio_tcp_connections_closed_total"},
			} {
				if sums[h.Name+" "+same[0]] != sums[h.Name+" "+same[1]] {
					return fmt.Errorf("%s: %v", h.Name, same)
				}
			}
		}
		if time.Since(began) < quiet {
			return errors.New("it is not quiet yet")
		}
		return nil
	})
	return last
}

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
		})
	}
}
