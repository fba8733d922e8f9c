package envoy_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlptrace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// seenSpan is a span in any protocol.
type seenSpan struct {
	trace, id, parent, name, kind, service string
	tags                                   map[string]string
}

// spanReceiver takes spans by all protocols of tracers. Of Datadog and SkyWalking it knows the
// bytes only.
type spanReceiver struct {
	collectortrace.UnimplementedTraceServiceServer
	http, grpc int // ports

	mu      sync.Mutex // guards all following fields
	spans   []seenSpan
	raw     map[string][]byte // by the path
	headers http.Header
}

func newSpanReceiver(t testing.TB) *spanReceiver {
	t.Helper()
	r := &spanReceiver{raw: map[string][]byte{}}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	fatalIf(t, err, "listening")
	g := grpc.NewServer(grpc.ForceServerCodecV2(rawOrProto{encoding.GetCodecV2("proto")}), grpc.UnknownServiceHandler(r.unknown))
	collectortrace.RegisterTraceServiceServer(g, r)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	r.grpc, r.http = portOf(t, l), portOf(t, s.Listener)
	return r
}

// Export takes spans by OTLP.
func (r *spanReceiver) Export(_ context.Context, m *collectortrace.ExportTraceServiceRequest) (*collectortrace.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range m.GetResourceSpans() {
		service := ""
		for _, kv := range resource.GetResource().GetAttributes() {
			if kv.GetKey() == "service.name" {
				service = kv.GetValue().GetStringValue()
			}
		}
		for _, scope := range resource.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				r.spans = append(r.spans, otlpSpan(s, service))
			}
		}
	}
	return &collectortrace.ExportTraceServiceResponse{}, nil
}

func otlpSpan(s *otlptrace.Span, service string) seenSpan {
	tags := map[string]string{}
	for _, kv := range s.GetAttributes() {
		tags[kv.GetKey()] = kv.GetValue().GetStringValue()
	}
	kind := strings.TrimPrefix(s.GetKind().String(), "SPAN_KIND_")
	return seenSpan{
		trace: hex.EncodeToString(s.GetTraceId()), id: hex.EncodeToString(s.GetSpanId()), parent: hex.EncodeToString(s.GetParentSpanId()),
		name: s.GetName(), kind: kind, service: service, tags: tags,
	}
}

// ServeHTTP takes spans by HTTP.
func (r *spanReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.mu.Lock()
	r.headers = req.Header
	r.raw[req.URL.Path] = append(r.raw[req.URL.Path], body...)
	r.mu.Unlock()
	switch req.URL.Path {
	case "/api/v2/spans":
		var list []struct {
			TraceID, ID, ParentID, Name, Kind string
			LocalEndpoint                     struct{ ServiceName string }
			Tags                              map[string]string
		}
		_ = json.Unmarshal(body, &list)
		r.mu.Lock()
		for _, s := range list {
			r.spans = append(r.spans, seenSpan{s.TraceID, s.ID, s.ParentID, s.Name, s.Kind, s.LocalEndpoint.ServiceName, s.Tags})
		}
		r.mu.Unlock()
		w.WriteHeader(http.StatusAccepted)
	case "/v1/traces":
		m := &collectortrace.ExportTraceServiceRequest{}
		if proto.Unmarshal(body, m) == nil {
			_, _ = r.Export(req.Context(), m)
		}
	default:
		_, _ = io.WriteString(w, "{}")
	}
}

// unknown takes what any other service of gRPC is sent.
func (r *spanReceiver) unknown(_ any, s grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(s)
	for {
		var b rawMessage
		if err := s.RecvMsg(&b); err != nil {
			return nil //nolint:nilerr // the stream ends
		}
		r.mu.Lock()
		r.raw[method] = append(r.raw[method], b...)
		r.mu.Unlock()
	}
}

const traceManifests = `
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: receiver, namespace: watch}
spec:
  hosts: [receiver.watch.mesh]
  location: MESH_EXTERNAL
  resolution: STATIC
  exportTo: ["."]
  ports: [{number: 4317, name: tcp-grpc, protocol: TCP, targetPort: GRPCRECEIVER}, {number: 4318, name: tcp-http, protocol: TCP, targetPort: HTTPRECEIVER}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: mesh, namespace: istio-system}
spec:
  tracing:
  - providers: [{name: THESERVER}]
    randomSamplingPercentage: 100
    customTags:
      fixed: {literal: {value: "a b"}}
      tenant: {header: {name: x-tenant, defaultValue: nobody}}
      place: {environment: {name: NO_SUCH_VARIABLE, defaultValue: here}}
      protocol: {formatter: {value: "%PROTOCOL% %CEL(request.method)%"}}
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  tracing:
  - {providers: [{name: THECLIENT}], match: {mode: CLIENT}}
`

const traceSettings = `
extensionProviders:
- {name: otlp, opentelemetry: {service: receiver.watch.mesh, port: 4317, grpc: {timeout: 3s, initialMetadata: [{name: x-key, value: secret}]}, resourceDetectors: {dynatrace: {}}}}
- {name: otlphttp, opentelemetry: {service: watch/receiver.watch.mesh, port: 4318, maxTagLength: 6, http: {path: /v1/traces, timeout: 3s, headers: [{name: x-key, value: secret}]}}}
- {name: sampled, opentelemetry: {service: receiver.watch.mesh, port: 4317, dynatraceSampler: {tenant: t, clusterId: 7, rootSpansPerMinute: 600, httpService: {service: receiver.watch.mesh, port: 4318, http: {path: /sampling}}}}}
- {name: zipkin, zipkin: {service: receiver.watch.mesh, port: 4318, headers: [{name: x-key, value: secret}]}}
- {name: w3c, zipkin: {service: receiver.watch.mesh, port: 4318, enable64bitTraceId: true, traceContextOption: USE_B3_WITH_W3C_PROPAGATION, timeout: 2s}}
- {name: datadog, datadog: {service: receiver.watch.mesh, port: 4318}}
- {name: skywalking, skywalking: {service: receiver.watch.mesh, port: 4317, accessToken: secret}}
`

// TestTraces: each kind of tracer of every Envoy reports the spans of a request, with Istio's
// names and tags and those of the Telemetry; the server's span is a child of the client's.
func TestTraces(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		for _, tracers := range [][2]string{{"otlp", "otlp"}, {"zipkin", "zipkin"}, {"otlphttp", "sampled"}, {"w3c", "w3c"}, {"datadog", "skywalking"}} {
			if tracers[0] != "otlp" && !slices.Contains(envoytest.Ends(), version) { // what differs between releases is seen at both ends
				continue
			}
			t.Run(version+" "+tracers[0]+" "+tracers[1], func(t *testing.T) {
				t.Parallel()
				testTraces(t, version, tracers[0], tracers[1])
			})
		}
	}
}

func testTraces(t *testing.T, version, client, server string) {
	t.Helper()
	r := newSpanReceiver(t)
	f := &fixture{version: version, echo: statusServer(t), meshConfig: traceSettings}
	if client == "datadog" {
		f.environ = []string{"DD_SERVICE=client.shop"}
	}
	f.setUp(t, strings.NewReplacer("GRPCRECEIVER", strconv.Itoa(r.grpc), "HTTPRECEIVER", strconv.Itoa(r.http), "THECLIENT", client, "THESERVER", server).Replace(traceManifests))
	ctx := t.Context()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		_, _, err := get(ctx, at(clientIP, f.http), nil)
		return err
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at(clientIP, f.http)+"/status/404", nil)
	fatalIf(t, err, "making a request")
	req.Host = "orders.shop.mesh"
	req.Header.Set("X-Tenant", "blue")
	resp, err := (&http.Client{Timeout: envoytest.Patience}).Do(req)
	fatalIf(t, err, "a request")
	_ = resp.Body.Close()
	operation := "orders.shop.mesh:" + strconv.Itoa(f.http) + "/*"
	envoytest.Eventually(t, envoytest.Patience, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		return checkTraces(r, client, server, operation, !strings.HasPrefix(version, "1.36."))
	})
	f.client.NoRejections(t)
	f.server.NoRejections(t)
}

func checkTraces(r *spanReceiver, client, server, operation string, formats bool) error {
	for name, path := range map[string]string{"datadog": "/v0.4/traces", "skywalking": "/skywalking.v3.TraceSegmentReportService/collect"} {
		if name != client && name != server {
			continue
		}
		if name == "skywalking" {
			operation = "/status/404" // its spans have the path
		}
		service := map[string]string{"datadog": "client.shop", "skywalking": "shop"}[name]
		for _, want := range []string{operation, "blue", "istio.canonical_service", "unknown", service} {
			if !bytes.Contains(r.raw[path], []byte(want)) {
				return fmt.Errorf("%s: %q is not in %d bytes at %s; there is %v", name, want, len(r.raw[path]), path, slices.Sorted(maps.Keys(r.raw)))
			}
		}
	}
	if client == "datadog" {
		return nil
	}
	byKind := map[string][]seenSpan{}
	for _, s := range r.spans {
		if s.tags["tenant"] == "blue" {
			byKind[s.kind] = append(byKind[s.kind], s)
		}
	}
	if len(byKind["CLIENT"]) != 1 || len(byKind["SERVER"]) != 1 {
		return fmt.Errorf("%d spans of clients, %d of servers, of %d: %+v", len(byKind["CLIENT"]), len(byKind["SERVER"]), len(r.spans), r.spans)
	}
	from, to := byKind["CLIENT"][0], byKind["SERVER"][0]
	if from.trace != to.trace || to.parent != from.id && to.id != from.id {
		return fmt.Errorf("trace %s, span %s; the server has trace %s, parent %s", from.trace, from.id, to.trace, to.parent)
	}
	if client == "w3c" && len(from.trace) != 16 || client == "zipkin" && len(from.trace) != 32 {
		return fmt.Errorf("a trace %s", from.trace)
	}
	want := map[string]string{
		"fixed": "a b", "tenant": "blue", "place": "here", "istio.canonical_service": "unknown", "istio.canonical_revision": "latest", "istio.mesh_id": "unknown",
		"istio.cluster_id": "unknown", "istio.namespace": "default", "http.status_code": "404", "component": "proxy",
	}
	if formats {
		want["protocol"] = "HTTP/1.1 GET"
	}
	for _, s := range []seenSpan{from, to} {
		if s.name != operation {
			return fmt.Errorf("a span %s; want %s", s.name, operation)
		}
		for name, value := range want {
			if s.tags[name] != value {
				return fmt.Errorf("the tag %s is %q, not %q: %v", name, s.tags[name], value, s.tags)
			}
		}
	}
	if client != "w3c" && client != "otlp" && r.headers.Get("X-Key") != "secret" {
		return fmt.Errorf("headers %v", r.headers)
	}
	return nil
}

// rawMessage is a message that is not decoded.
type rawMessage []byte

// rawOrProto decodes messages of Protocol Buffers, and leaves rawMessages as they are.
type rawOrProto struct{ encoding.CodecV2 }

func (c rawOrProto) Unmarshal(data mem.BufferSlice, v any) error {
	if raw, ok := v.(*rawMessage); ok {
		*raw = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}
