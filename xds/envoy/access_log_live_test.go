package envoy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	datalogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	alsv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	collectorlogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	otlpcommon "go.opentelemetry.io/proto/otlp/common/v1"
	otlplogs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// logReceiver takes access logs by ALS and by OTLP.
type logReceiver struct {
	alsv3.UnimplementedAccessLogServiceServer
	collectorlogs.UnimplementedLogsServiceServer
	port int

	mu      sync.Mutex // guards all following fields
	http    map[string][]*datalogv3.HTTPAccessLogEntry
	tcp     map[string][]*datalogv3.TCPAccessLogEntry
	records []*otlplogs.LogRecord
}

func newLogReceiver(t testing.TB) *logReceiver {
	t.Helper()
	r := &logReceiver{http: map[string][]*datalogv3.HTTPAccessLogEntry{}, tcp: map[string][]*datalogv3.TCPAccessLogEntry{}}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	fatalIf(t, err, "listening")
	g := grpc.NewServer()
	alsv3.RegisterAccessLogServiceServer(g, r)
	collectorlogs.RegisterLogsServiceServer(g, r)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	r.port = portOf(t, l)
	return r
}

func (r *logReceiver) StreamAccessLogs(s alsv3.AccessLogService_StreamAccessLogsServer) error {
	name := ""
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		if n := m.GetIdentifier().GetLogName(); n != "" {
			name = n
		}
		r.mu.Lock()
		r.http[name] = append(r.http[name], m.GetHttpLogs().GetLogEntry()...)
		r.tcp[name] = append(r.tcp[name], m.GetTcpLogs().GetLogEntry()...)
		r.mu.Unlock()
	}
}

// Export takes logs by OTLP.
func (r *logReceiver) Export(_ context.Context, m *collectorlogs.ExportLogsServiceRequest) (*collectorlogs.ExportLogsServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range m.GetResourceLogs() {
		for _, scope := range resource.GetScopeLogs() {
			r.records = append(r.records, scope.GetLogRecords()...)
		}
	}
	return &collectorlogs.ExportLogsServiceResponse{}, nil
}

const logManifests = `
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: receiver, namespace: watch}
spec:
  hosts: [receiver.watch.mesh]
  location: MESH_EXTERNAL
  resolution: STATIC
  exportTo: ["."]
  ports: [{number: 4317, name: tcp, protocol: TCP, targetPort: RECEIVER}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: mesh, namespace: istio-system}
spec:
  accessLogging:
  - providers: [{name: text}, {name: json}, {name: http}, {name: tcp}, {name: otel}]
  - {providers: [{name: errors}], filter: {expression: "response.code >= 400 && request.method == 'GET'"}}
  - {providers: [{name: served}], match: {mode: SERVER}}
`

const logSettings = `
extensionProviders:
- {name: text, envoyFileAccessLog: {path: DIR/text.log}}
- {name: json, envoyFileAccessLog: {path: DIR/json.log, logFormat: {labels: {code: "%RESPONSE_CODE%", at: {path: "%REQ_WITHOUT_QUERY(:PATH)%"}}}}}
- {name: errors, envoyFileAccessLog: {path: DIR/errors.log, logFormat: {text: "%REQ(:PATH)% %RESPONSE_CODE%"}}}
- {name: served, envoyFileAccessLog: {path: DIR/served.log, logFormat: {text: "%REQ(:PATH)% %CEL(response.code)% %PROTOCOL%"}}}
- {name: http, envoyHttpAls: {service: receiver.watch.mesh, port: 4317, logName: requests, additionalRequestHeadersToLog: [x-tenant]}}
- {name: tcp, envoyTcpAls: {service: watch/receiver.watch.mesh, port: 4317}}
- {name: otel, envoyOtelAls: {service: receiver.watch.mesh, port: 4317, logFormat: {text: "%REQ(:PATH)%", labels: {code: "%RESPONSE_CODE%"}}}}
`

// TestAccessLogs: each kind of provider gets a line for each request and connection, in the
// format that it has, by every Envoy; the receiver is in a namespace that the hosts do not see.
func TestAccessLogs(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			dir, r := t.TempDir(), newLogReceiver(t)
			f := &fixture{version: version, echo: statusServer(t), meshConfig: strings.ReplaceAll(logSettings, "DIR", dir)}
			f.setUp(t, strings.ReplaceAll(logManifests, "RECEIVER", strconv.Itoa(r.port)))
			ctx := t.Context()
			envoytest.Eventually(t, envoytest.Patience, func() error {
				_, _, err := get(ctx, at(clientIP, f.http), nil)
				return err
			})
			for path, want := range map[string]int{"/fine?secret=1": http.StatusOK, "/status/404": http.StatusNotFound} {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at(clientIP, f.http)+path, nil)
				fatalIf(t, err, "making a request")
				req.Host = "orders.shop.mesh"
				req.Header.Set("X-Tenant", "blue")
				resp, err := (&http.Client{Timeout: envoytest.Patience}).Do(req)
				fatalIf(t, err, "GET %s", path)
				_ = resp.Body.Close()
				if resp.StatusCode != want {
					t.Fatalf("GET %s: %d", path, resp.StatusCode)
				}
			}
			_, err := sayLine(ctx, at(clientIP, f.tcp))
			fatalIf(t, err, "a connection")
			envoytest.Eventually(t, envoytest.Patience, func() error { return checkLogs(dir, r) })
			f.client.NoRejections(t)
			f.server.NoRejections(t)
		})
	}
}

// istioLine is a line of Istio's default format for a request.
var istioLine = regexp.MustCompile(`^\[\d{4}-\d\d-\d\dT[0-9:.]+Z\] "GET /fine\?secret=1 HTTP/1.1" 200 - via_upstream - "-" 0 \d+ \d+ \d+ "[^"]*" "[^"]*" "[0-9a-f-]{36}" "orders.shop.mesh" "127\.0\.0\.\d+:\d+" (inbound|outbound)\|\d+\|\|\S* `)

func checkLogs(dir string, r *logReceiver) error {
	lines := func(name string, want func(line string) bool) (n int) {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return -1
		}
		for line := range strings.Lines(string(content)) {
			if want(strings.TrimSuffix(line, "\n")) {
				n++
			}
		}
		return n
	}
	count := map[string]int{
		"text":   lines("text.log", istioLine.MatchString),
		"tcp":    lines("text.log", func(l string) bool { return strings.Contains(l, `"- - -" 0 - - - "-" `) }),
		"json":   lines("json.log", isJSONLog),
		"errors": lines("errors.log", func(l string) bool { return l == "/status/404 404" }),
		"other":  lines("errors.log", func(l string) bool { return l != "/status/404 404" && !strings.HasPrefix(l, "/ ") }), // "/" waited for the start
		"served": lines("served.log", func(l string) bool { return l == "/fine?secret=1 200 HTTP/1.1" }),
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.http["requests"] {
		if e.GetRequest().GetPath() == "/fine?secret=1" && e.GetRequest().GetRequestHeaders()["x-tenant"] == "blue" {
			count["als"]++
		}
	}
	for _, e := range r.tcp["tcp_envoy_accesslog"] {
		if e.GetConnectionProperties().GetReceivedBytes() > 0 {
			count["als_tcp"]++
		}
	}
	for _, rec := range r.records {
		attributes := rec.GetAttributes()
		if rec.GetBody().GetStringValue() == "/fine?secret=1" && slices.ContainsFunc(attributes, isCode200) {
			count["otlp"]++
		}
	}
	// Both Envoys log each request; the one that fails, too.
	want := map[string]int{"text": 2, "tcp": 2, "json": 2, "errors": 2, "other": 0, "served": 1, "als": 2, "als_tcp": 2, "otlp": 2}
	for name, n := range want {
		if count[name] != n {
			return fmt.Errorf("%s: %d lines, want %d (%v)", name, count[name], n, count)
		}
	}
	return nil
}

// statusServer answers 404 to paths that begin with /status/404.
func statusServer(t testing.TB) int {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/status/404") {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	return portOf(t, s.Listener)
}

func isJSONLog(line string) bool {
	var entry struct {
		Code int
		At   struct{ Path string }
	}
	return json.Unmarshal([]byte(line), &entry) == nil && entry.Code == http.StatusOK && entry.At.Path == "/fine"
}

func isCode200(kv *otlpcommon.KeyValue) bool {
	return kv.GetKey() == "code" && kv.GetValue().GetStringValue() == "200"
}
