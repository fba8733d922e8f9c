package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// counted is a running mesh of two hosts, client and echo, under load in its turn.
type counted struct {
	*meshtest.Mesh
	b *testing.B
	variant
	logFile string
	spans   *atomic.Int64
	asked   int // requests that were answered, those of before the load included
	callers []*caller
	// Envoy and agent of the client and of echo.
	clientEnvoy, clientAgent, echoEnvoy, echoAgent int
}

// newCounted starts a mesh and waits until requests get through.
func newCounted(b *testing.B, v variant) *counted {
	b.Helper()
	m := &counted{
		Mesh: meshtest.New(b, "", map[string]int{"http": 18081}), b: b, variant: v,
		logFile: filepath.Join(b.TempDir(), "access.log"), spans: &atomic.Int64{},
	}
	m.Write("mesh.yaml", countingMesh)
	for _, name := range services() {
		m.Write(name+".yaml", strings.ReplaceAll(countingService, "NAME", name))
	}
	if v.manifest != "" {
		m.Write("more.yaml", strings.ReplaceAll(v.manifest, "PORT", m.receiver()))
	}
	config := filepath.Join(b.TempDir(), "mesh.yaml")
	text := "defaultConfig: {concurrency: 1}\n" + strings.ReplaceAll(v.config, "LOG", m.logFile)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	m.serve()
	m.StartServer("--mesh-config", config)
	var agents []*meshtest.Process
	for i, name := range []string{"client", "echo"} {
		h := meshtest.Host{Name: name, Workload: "shop/" + name, Address: 11 + i}
		h.Agent = []string{"--drain-time", "1s", "--http-address", m.AgentHTTP(h.Address)}
		_, agent := m.StartHost(h)
		agents = append(agents, agent)
	}
	b.Cleanup(func() {
		for _, p := range agents { // each drains: all at once
			if !p.Ended() {
				_ = syscall.Kill(p.PID(), syscall.SIGTERM)
			}
		}
	})
	m.AwaitLive("client", "echo")
	m.clientAgent, m.echoAgent = agents[0].PID(), agents[1].PID()
	m.clientEnvoy, m.echoEnvoy = m.EnvoyPID("client"), m.EnvoyPID("echo")
	for _, pid := range []int{m.clientEnvoy, m.echoEnvoy} {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !strings.Contains(string(line), "--concurrency\x001\x00") {
			b.Fatalf("the Envoy does not have one worker: %q, %v", line, err)
		}
	}
	for range connections {
		c := &caller{}
		envoytest.Eventually(b, envoytest.Patience, func() error {
			conn, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", net.JoinHostPort(m.Address(11), "9080"))
			if err != nil {
				return err
			}
			c.conn, c.r = conn, bufio.NewReader(conn)
			for _, name := range services() {
				if err := c.ask(name, http.StatusOK); err != nil {
					return errors.Join(err, conn.Close())
				}
				m.asked++
			}
			return nil
		})
		b.Cleanup(func() { _ = c.conn.Close() })
		m.callers = append(m.callers, c)
	}
	return m
}

// serve runs the application of echo, which answers with the status that is asked for.
func (m *counted) serve() {
	m.b.Helper()
	l, err := (&net.ListenConfig{}).Listen(m.b.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", m.Port("http")))
	if err != nil {
		m.b.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		if err != nil || code < http.StatusOK || code > 599 {
			code = http.StatusBadRequest
		}
		w.WriteHeader(code)
	})}
	go func() { _ = s.Serve(l) }()
	m.b.Cleanup(func() { _ = s.Close() })
}

// receiver runs a receiver of traces; it gives its port.
func (m *counted) receiver() string {
	m.b.Helper()
	l, err := (&net.ListenConfig{}).Listen(m.b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		m.b.Fatal(err)
	}
	s := grpc.NewServer()
	coltrace.RegisterTraceServiceServer(s, &sink{spans: m.spans})
	go func() { _ = s.Serve(l) }()
	m.b.Cleanup(s.Stop)
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		m.b.Fatal(err)
	}
	return port
}

// sink is a receiver of traces that counts and forgets them.
type sink struct {
	coltrace.UnimplementedTraceServiceServer
	spans *atomic.Int64
}

// Export takes spans.
func (s *sink) Export(_ context.Context, in *coltrace.ExportTraceServiceRequest) (*coltrace.ExportTraceServiceResponse, error) {
	for _, r := range in.GetResourceSpans() {
		for _, scope := range r.GetScopeSpans() {
			s.spans.Add(int64(len(scope.GetSpans())))
		}
	}
	return &coltrace.ExportTraceServiceResponse{}, nil
}

// caller is a connection to the client's Envoy that is kept.
type caller struct {
	conn net.Conn
	r    *bufio.Reader
}

// ask sends a request, and waits for the answer with a status.
func (c *caller) ask(service string, code int) error {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c.conn, "GET /%d HTTP/1.1\r\nhost: %s.shop.internal\r\n\r\n", code, service); err != nil {
		return err
	}
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != code {
		return fmt.Errorf("answered with %d, not %d", res.StatusCode, code)
	}
	return nil
}

// cost is the CPU of a request, in microseconds.
type cost struct{ envoys, agents float64 }

func (c cost) all() float64 { return c.envoys + c.agents }

// load sends n requests and gives the CPU that one took.
func (m *counted) load(n int) cost {
	m.b.Helper()
	envoys, agents := m.clocks()
	errs := make([]error, len(m.callers))
	var wg sync.WaitGroup
	for i, c := range m.callers {
		wg.Go(func() {
			for range n / connections {
				if errs[i] = c.ask("a", http.StatusOK); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		m.b.Fatalf("%s: %v", m.name, err)
	}
	sent := n / connections * connections
	m.asked += sent
	envoysNow, agentsNow := m.clocks()
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(sent) }
	return cost{each(envoysNow - envoys), each(agentsNow - agents)}
}

// clocks are the CPU times of both Envoys and of both agents.
func (m *counted) clocks() (envoys, agents time.Duration) {
	m.b.Helper()
	return clock(m.b, m.clientEnvoy) + clock(m.b, m.echoEnvoy), clock(m.b, m.clientAgent) + clock(m.b, m.echoAgent)
}

// clock is the CPU time of a process: its threads together, those that have ended too, in
// nanoseconds, where /proc/PID/stat has hundredths of a second.
func clock(b *testing.B, pid int) time.Duration {
	b.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|2, &ts); err != nil {
		b.Fatalf("reading the clock of process %d: %v", pid, err)
	}
	return time.Duration(ts.Nano())
}

// silent says whether nothing was reported.
func (m *counted) silent() error {
	page, err := m.Metrics(11)
	if err == nil && len(page.Matching("istio_request")) != 0 {
		err = fmt.Errorf("%s: %v", m.name, page.Matching("istio_request"))
	}
	return err
}

// hasCounted says whether both sides have counted all requests.
func (m *counted) hasCounted(withHistograms bool) error {
	for host, side := range map[int]string{11: "source", 12: "destination"} {
		page, err := m.Metrics(host)
		if err != nil {
			return err
		}
		n, durations := page.Sum("istio_requests_total", "reporter", side, "response_code", "200"), page.Sum("istio_request_duration_milliseconds_count", "reporter", side, "response_code", "200")
		switch {
		case n < float64(m.asked):
			return fmt.Errorf("%s: host %d counted %v of %d requests", m.name, host, n, m.asked)
		case withHistograms && durations != n, !withHistograms && durations != 0:
			return fmt.Errorf("%s: host %d has %v durations of %v requests", m.name, host, durations, n)
		}
	}
	return nil
}

// hasLogged says whether there are lines of both sides.
func (m *counted) hasLogged() error {
	const aLine = 150 // is longer
	info, err := os.Stat(m.logFile)
	if err == nil && info.Size() < 2*aLine*int64(m.asked) {
		err = fmt.Errorf("the access log of %d requests has %d bytes", m.asked, info.Size())
	}
	return err
}

// hasTraced says whether a part of the requests was traced, with two spans each.
func (m *counted) hasTraced() error {
	share := float64(m.spans.Load()) / 2 / float64(m.asked)
	if m.asked > 5000 && (share < 0.005 || share > 0.02) || share == 0 {
		return fmt.Errorf("%d spans of %d requests", m.spans.Load(), m.asked)
	}
	return nil
}
