package traffic

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// hangingCollector takes everything by gRPC. It can hang in two ways: as a program whose handlers
// wait, and which answers pings, and as one that is stopped, of which the kernel takes connections.
type hangingCollector struct {
	port  string
	calls atomic.Int64 // that were answered, and messages of streams

	mu      sync.Mutex    // guards all following fields
	hangs   chan struct{} // closed while handlers do not wait
	stopped chan struct{} // closed while connections are read
}

func startCollector(t *testing.T) *hangingCollector {
	t.Helper()
	c := &hangingCollector{hangs: make(chan struct{}), stopped: make(chan struct{})}
	c.answer()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, c.port, _ = net.SplitHostPort(l.Addr().String())
	g := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{encoding.GetCodecV2("proto")}), grpc.UnknownServiceHandler(c.handle))
	go func() { _ = g.Serve(collectorListener{l, c}) }()
	t.Cleanup(func() {
		c.answer()
		g.Stop()
	})
	return c
}

// answer ends both ways of hanging.
func (c *hangingCollector) answer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range []chan struct{}{c.hangs, c.stopped} {
		select {
		case <-ch:
		default:
			close(ch)
		}
	}
}

func (c *hangingCollector) hang() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hangs = make(chan struct{})
}

func (c *hangingCollector) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = make(chan struct{})
}

func (c *hangingCollector) gates() (hangs, stopped chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hangs, c.stopped
}

func (c *hangingCollector) handle(_ any, s grpc.ServerStream) error {
	for {
		hangs, _ := c.gates()
		select {
		case <-hangs:
		case <-s.Context().Done():
			return nil
		}
		var b []byte
		if err := s.RecvMsg(&b); err != nil {
			if errors.Is(err, io.EOF) { // of a call
				return s.SendMsg(&[]byte{})
			}
			return err
		}
		c.calls.Add(1)
	}
}

type collectorListener struct {
	net.Listener
	c *hangingCollector
}

func (l collectorListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return collectorConn{conn, l.c}, nil
}

type collectorConn struct {
	net.Conn
	c *hangingCollector
}

func (c collectorConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	_, stopped := c.c.gates()
	<-stopped
	return n, err
}

// rawCodec passes messages as bytes.
type rawCodec struct{ encoding.CodecV2 }

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.(*[]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if b, ok := v.(*[]byte); ok {
		*b = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

const hangingEntry = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: collector, namespace: watch}
spec:
  hosts: [collector.watch.internal]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 4317, name: grpc, protocol: GRPC, targetPort: %[1]s}, {number: 9000, name: grpc-als, protocol: GRPC, targetPort: %[1]s}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: mesh, namespace: istio-system}
spec:
  tracing: [{providers: [{name: otlp}], randomSamplingPercentage: 100}]
  accessLogging: [{providers: [{name: logs}, {name: als}]}]
`

// A call may take longer here than by default, so that more would wait than may.
const hangingSettings = `
extensionProviders:
- {name: otlp, opentelemetry: {service: collector.watch.internal, port: 4317, grpc: {timeout: 20s}}}
- {name: logs, envoyOtelAls: {service: collector.watch.internal, port: 4317}}
- {name: als, envoyHttpAls: {service: collector.watch.internal, port: 9000}}
`

// maxWaitingCalls is what waits for a collector at most, in one Envoy.
const maxWaitingCalls = 256

// maxGrowth is more memory in MiB than waits for a collector in an Envoy, of which 13 to 17 were measured. Without a
// bound it grows by this in half a minute, and goes on.
const maxGrowth = 24

// TestCollectorHangs: a collector of spans and logs that hangs fails no request, and Envoys do not grow
// with it: no more calls wait than may, the others are counted and told; when it answers again, it gets
// what is new.
func TestCollectorHangs(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := startCollector(t)
			p := newPair(t)
			p.Write("collector.yaml", fmt.Sprintf(hangingEntry, c.port))
			binary := envoytest.BinaryVersion(t, version)
			for _, h := range []*meshtest.Host{&p.clientH, &p.echoH} {
				h.Agent = append(h.Agent, "--envoy", binary)
			}
			config := filepath.Join(t.TempDir(), "mesh.yaml")
			if err := os.WriteFile(config, []byte(hangingSettings), 0o600); err != nil {
				t.Fatal(err)
			}
			p.StartServer("--mesh-config", config)
			p.startHosts()
			const rate, warm, phase = 100, 1500, 3500
			load := meshtest.NewClient(t, echoHost).StartLoad(t, "http://"+p.at(11, 9080)+"/", rate)
			load.Wait(t, warm)
			c.awaitMore(t)
			before := map[string]int{"client": residentMiB(t, p, "client"), "echo": residentMiB(t, p, "echo")}
			for _, way := range []struct {
				name  string
				begin func()
			}{{"handlers that wait", c.hang}, {"a program that is stopped", c.stop}} {
				way.begin()
				load.Wait(t, phase)
				for host, mib := range before {
					waiting := p.collectorStat(t, host, `telemetry_grpc\|.*;\.upstream_rq_active$`)
					lost := p.collectorStat(t, host, `telemetry_grpc\|.*;\.upstream_rq_(?:pending_overflow|active_overflow|max_duration_reached)$`)
					grown := residentMiB(t, p, host) - mib
					t.Logf("%s, %s: %d calls wait, %d are lost, grown by %d MiB", way.name, host, waiting, lost, grown)
					if waiting > maxWaitingCalls || lost == 0 || grown > maxGrowth {
						t.Errorf("%s, %s: %d calls wait, %d are lost, grown by %d MiB", way.name, host, waiting, lost, grown)
					}
				}
				const says = "the collector collector.watch.internal:4317 does not take what Envoy reports; requests are not affected"
				envoytest.Eventually(t, envoytest.Patience, func() error {
					page, err := p.Admin("client", "/readyz")
					if err == nil && !strings.Contains(page, says) {
						err = fmt.Errorf("/readyz: %s", page)
					}
					if err != nil {
						return err
					}
					const row = "  host-problem: the agent of client.shop reports: the collector collector.watch.internal:4317 does not answer, or too late"
					if status, _ := p.CLI("proxy-status", "--run-dir", p.RunDir("server"), "client"); !strings.Contains(status, row) {
						return fmt.Errorf("proxy-status: %s", status)
					}
					return nil
				})
				c.answer()
				c.awaitMore(t)
			}
			page, err := p.Admin("client", "/metrics")
			if err != nil || strings.Contains(page, `fairlead_agent_reports_dropped_total{what="calls"} 0`) || !strings.Contains(page, "fairlead_agent_reports_dropped_total") {
				t.Errorf("the metric of what was dropped: %v in %s", err, page)
			}
			if r := load.Stop(); r.Failed > 0 {
				t.Errorf("%d of %d requests failed: %v", r.Failed, r.Good+r.Failed, r.Errors)
			} else {
				t.Logf("0 of %d requests failed", r.Good)
			}
			p.AwaitLive("client", "echo")
		})
	}
}

// awaitMore waits until the collector has more than is on its way.
func (c *hangingCollector) awaitMore(t *testing.T) {
	t.Helper()
	const more = 4 * maxWaitingCalls
	from := c.calls.Load()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if n := c.calls.Load() - from; n < more {
			return fmt.Errorf("the collector has %d more calls", n)
		}
		return nil
	})
}

// collectorStat is the sum of statistics whose names match.
func (p *pair) collectorStat(t *testing.T, host, pattern string) int {
	t.Helper()
	page, err := p.EnvoyAdmin(host, "/stats?filter="+strings.NewReplacer("\\", "%5C", "|", "%7C", "?", "%3F", ":", "%3A", ";", "%3B", "$", "%24").Replace(pattern))
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for line := range strings.Lines(page) {
		_, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		n, err := strconv.Atoi(value)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		sum += n
	}
	return sum
}

// residentMiB is the memory of a host's Envoy.
func residentMiB(t *testing.T, p *pair, host string) int {
	t.Helper()
	page, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.EnvoyPID(host)))
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(string(page))
	if len(words) < 2 {
		t.Fatalf("statm: %s", page)
	}
	pages, err := strconv.Atoi(words[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize() >> 20
}
