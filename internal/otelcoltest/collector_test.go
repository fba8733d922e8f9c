package otelcoltest

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestCollectorReceives sends by gRPC and by HTTP, and wants what was sent.
func TestCollectorReceives(t *testing.T) {
	t.Parallel()
	c := Start(t)
	conn, err := grpc.NewClient(c.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	spans := []*tracepb.ResourceSpans{{ScopeSpans: []*tracepb.ScopeSpans{{Spans: []*tracepb.Span{{
		TraceId: bytes.Repeat([]byte{7}, 16), SpanId: bytes.Repeat([]byte{8}, 8), Name: "change", StartTimeUnixNano: 1, EndTimeUnixNano: 2, Status: &tracepb.Status{},
	}}}}}}
	if _, err := coltrace.NewTraceServiceClient(conn).Export(t.Context(), &coltrace.ExportTraceServiceRequest{ResourceSpans: spans}); err != nil {
		t.Fatal(err)
	}
	logs := []*logspb.ResourceLogs{{ScopeLogs: []*logspb.ScopeLogs{{LogRecords: []*logspb.LogRecord{{
		Body: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: "GET /"}},
	}}}}}}
	if _, err := collogs.NewLogsServiceClient(conn).Export(t.Context(), &collogs.ExportLogsServiceRequest{ResourceLogs: logs}); err != nil {
		t.Fatal(err)
	}
	metrics := []*metricspb.ResourceMetrics{{ScopeMetrics: []*metricspb.ScopeMetrics{{Metrics: []*metricspb.Metric{{
		// A metric without a point does not pass the Collector.
		Name: "requests", Data: &metricspb.Metric_Gauge{Gauge: &metricspb.Gauge{DataPoints: []*metricspb.NumberDataPoint{{TimeUnixNano: 1, Value: &metricspb.NumberDataPoint_AsInt{AsInt: 3}}}}},
	}}}}}}
	if _, err := colmetrics.NewMetricsServiceClient(conn).Export(t.Context(), &colmetrics.ExportMetricsServiceRequest{ResourceMetrics: metrics}); err != nil {
		t.Fatal(err)
	}
	body, err := proto.Marshal(&coltrace.ExportTraceServiceRequest{ResourceSpans: spans})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.HTTP+"/v1/traces", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("HTTP: %s", res.Status)
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if len(c.Traces(t)) < 2 || len(c.Logs(t)) < 1 || len(c.Metrics(t)) < 1 {
			return errors.New("not everything has arrived")
		}
		return nil
	})
	for _, got := range c.Traces(t) {
		if span := got.GetScopeSpans()[0].GetSpans()[0]; !proto.Equal(span, spans[0].GetScopeSpans()[0].GetSpans()[0]) {
			t.Errorf("the span is %v", span)
		}
	}
	if got := c.Logs(t)[0].GetScopeLogs()[0].GetLogRecords()[0].GetBody().GetStringValue(); got != "GET /" {
		t.Errorf("the log record is %q", got)
	}
	if got := c.Metrics(t)[0].GetScopeMetrics()[0].GetMetrics()[0].GetName(); got != "requests" {
		t.Errorf("the metric is %q", got)
	}
}

// TestVersionIsPinned compares the release of the tests with the one that `make tools` installs.
func TestVersionIsPinned(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(t), "tools", "otelcol", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "go.opentelemetry.io/collector/otelcol v" + Version + "\n"; !strings.Contains(string(b), want) {
		t.Errorf("tools/otelcol/go.mod has another version than %s", Version)
	}
}
