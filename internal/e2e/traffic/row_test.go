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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	received int                         // bytes over TCP
	conns    map[string]*grpc.ClientConn // by address and host
}

// startRow starts a row with Envoys of a version, and with agents that have further arguments.
func startRow(t *testing.T, version string, args ...string) *row {
	t.Helper()
	r := &row{
		Mesh: meshtest.New(t, "internal/e2e/traffic/testdata/exact", map[string]int{"front": 18081, "http": 18082, "grpc": 18083, "tcp": 18084, "nobody": 18085}),
		t:    t, release: make(chan struct{}), answered: map[string]int{}, conns: map[string]*grpc.ClientConn{},
	}
	binary := envoytest.BinaryVersion(t, version)
	config := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(config, []byte("defaultProviders: {metrics: [prometheus]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, w := range []way{{}, {plain: true}} {
		r.Write(fmt.Sprintf("failing-%d.yaml", i), failing(w))
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
	r.ready()
	return r
}

// ready waits until each way of the load works.
func (r *row) ready() {
	r.t.Helper()
	r.AwaitLive("client", "front", "back")
	settle(r.t, func() error {
		for _, host := range []string{frontHost, "routes.shop.internal"} {
			if err := r.gives(r.at(11, 9080), host, "/known", http.StatusOK)(); err != nil {
				return err
			}
		}
		if err := r.invoke(codes.OK); err != nil {
			return err
		}
		return errors.Join(r.line(r.at(11, 9000)), r.line(r.at(13, 9000)), r.failing())
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
			r.hold(in.Context())
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
	g := grpc.NewServer(grpc.UnknownServiceHandler(r.answerStatus))
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

// hold keeps a request until it is released or its client has left.
func (r *row) hold(ctx context.Context) {
	r.held.Add(1)
	defer r.held.Add(-1)
	select {
	case <-r.release:
	case <-ctx.Done():
	}
}

// answerStatus answers with the status that the request names: with a message for OK, so that the
// status is in trailers, and else with trailers only.
func (r *row) answerStatus(_ any, s grpc.ServerStream) error {
	md, _ := metadata.FromIncomingContext(s.Context())
	var in structpb.Struct
	if err := s.RecvMsg(&in); err != nil {
		return err
	}
	want := codes.OK
	switch path := md.Get("path"); {
	case len(path) != 1:
	case path[0] == "/hold":
		if r.hold(s.Context()); s.Context().Err() != nil {
			want = codes.Canceled
		}
	case path[0] != "/known":
		var err error
		if want, err = codeOf(md); err != nil {
			return err
		}
	}
	r.mu.Lock()
	r.answered[fmt.Sprintf("gRPC %d", want)]++
	r.mu.Unlock()
	if want != codes.OK {
		return status.Error(want, "as asked")
	}
	return s.SendMsg(&in)
}

// codeOf is the status that a request asks for.
func codeOf(md metadata.MD) (code codes.Code, err error) {
	if want := md.Get("want"); len(want) == 1 {
		err = code.UnmarshalJSON([]byte(want[0]))
	}
	return code, err
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
	if err := r.call(r.t.Context(), r.at(11, 9090), backHost, "/status", want); status.Code(err) != want {
		return fmt.Errorf("gRPC: %w, want %s", err, want)
	}
	return nil
}

// call asks a host over gRPC, over one connection. path says what its application does: it answers
// with a status, or holds the call.
func (r *row) call(ctx context.Context, address, host, path string, want codes.Code) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := r.connection(address, host)
	if err != nil {
		return err
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "path", path, "want", strconv.Itoa(int(want)))
	err = conn.Invoke(ctx, "/shop.Inventory/Stock", &structpb.Struct{}, &structpb.Struct{})
	if status.Code(err) == want {
		r.asked.Add(1)
	}
	return err
}

func (r *row) connection(address, host string) (*grpc.ClientConn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if conn := r.conns[address+host]; conn != nil {
		return conn, nil
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(host))
	if err != nil {
		return nil, err
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	r.conns[address+host] = conn
	return conn, nil
}

// line makes a connection, sends a line, reads the answer, and ends.
func (r *row) line(address string) error { return r.during(address, func() {}) }

// during is as line, and does something before it ends.
func (r *row) during(address string, f func()) error {
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
	f()
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
