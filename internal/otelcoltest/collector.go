package otelcoltest

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// Version is the release of the Collector, which tools/otelcol pins.
const Version = "0.160.0"

// Collector is a running OpenTelemetry Collector. It ends with its test.
type Collector struct {
	// GRPC and HTTP are the HOST:PORT where it takes OTLP without TLS. Over HTTP, the paths are
	// /v1/traces, /v1/logs and /v1/metrics.
	GRPC, HTTP string

	dir string
	cmd *exec.Cmd
	log *envoytest.Log
}

// Binary is the path of the Collector. A test with -short is skipped, as with real Envoys.
func Binary(tb testing.TB) string {
	tb.Helper()
	if testing.Short() {
		tb.Skip("runs a real OpenTelemetry Collector: not in -short")
	}
	p := filepath.Join(envoytest.ModuleRoot(tb), ".tools", "otelcol-"+Version, "otelcol")
	if _, err := os.Stat(p); err != nil {
		envoytest.Missing(tb, "the OpenTelemetry Collector %s is not at %q: run `make tools`", Version, p)
	}
	return p
}

const config = `receivers:
  otlp: {protocols: {grpc: {endpoint: "%s"}, http: {endpoint: "%s"}}}
exporters:
  lines: {dir: %q}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    traces: {receivers: [otlp], exporters: [lines]}
    logs: {receivers: [otlp], exporters: [lines]}
    metrics: {receivers: [otlp], exporters: [lines]}
`

// Start starts a Collector on 127.0.0.1, and returns when it takes connections.
func Start(tb testing.TB) *Collector {
	tb.Helper()
	bin, ports := Binary(tb), envoytest.FreePorts(tb, 2)
	at := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
	c := &Collector{GRPC: at(ports[0]), HTTP: at(ports[1]), dir: tb.TempDir(), log: &envoytest.Log{}}
	file := filepath.Join(c.dir, "config.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, config, c.GRPC, c.HTTP, c.dir), 0o600); err != nil {
		tb.Fatal(err)
	}
	c.cmd = exec.Command(bin, "--config", file)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	if err := c.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.cmd.Wait()
	}()
	tb.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-ended
		if tb.Failed() {
			tb.Logf("the Collector's log:\n%s", c.log)
		}
	})
	var d net.Dialer
	envoytest.Eventually(tb, envoytest.Patience, func() error {
		select {
		case <-ended:
			tb.Fatalf("the Collector ended: %s", c.log)
		default:
		}
		for _, address := range []string{c.GRPC, c.HTTP} {
			conn, err := d.DialContext(tb.Context(), "tcp", address)
			if err != nil {
				return err
			}
			_ = conn.Close()
		}
		return nil
	})
	return c
}

// Log is what the Collector has logged so far.
func (c *Collector) Log() string { return c.log.String() }

// Traces are all spans that arrived so far, in the order of their arrival.
func (c *Collector) Traces(tb testing.TB) (all []*tracepb.ResourceSpans) {
	tb.Helper()
	for _, b := range c.messages(tb, "traces") {
		var d tracepb.TracesData
		if err := proto.Unmarshal(b, &d); err != nil {
			tb.Fatal(err)
		}
		all = append(all, d.GetResourceSpans()...)
	}
	return all
}

// Logs are all log records that arrived so far, in the order of their arrival.
func (c *Collector) Logs(tb testing.TB) (all []*logspb.ResourceLogs) {
	tb.Helper()
	for _, b := range c.messages(tb, "logs") {
		var d logspb.LogsData
		if err := proto.Unmarshal(b, &d); err != nil {
			tb.Fatal(err)
		}
		all = append(all, d.GetResourceLogs()...)
	}
	return all
}

// Metrics are all metrics that arrived so far, in the order of their arrival.
func (c *Collector) Metrics(tb testing.TB) (all []*metricspb.ResourceMetrics) {
	tb.Helper()
	for _, b := range c.messages(tb, "metrics") {
		var d metricspb.MetricsData
		if err := proto.Unmarshal(b, &d); err != nil {
			tb.Fatal(err)
		}
		all = append(all, d.GetResourceMetrics()...)
	}
	return all
}

// messages are those of a file of the Collector. A last line without an end is still being
// written.
func (c *Collector) messages(tb testing.TB, name string) (all [][]byte) {
	tb.Helper()
	content, err := os.ReadFile(filepath.Join(c.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		text, whole := strings.CutSuffix(line, "\n")
		if !whole {
			break
		}
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}
