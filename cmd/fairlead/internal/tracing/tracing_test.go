package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds"
	"github.com/fairlead/fairlead/xds/stream"
)

// receiver takes traces in this process.
type receiver struct {
	coltrace.UnimplementedTraceServiceServer

	spans chan *tracepb.Span
}

func (r *receiver) Export(_ context.Context, in *coltrace.ExportTraceServiceRequest) (*coltrace.ExportTraceServiceResponse, error) {
	for _, of := range in.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				r.spans <- s
			}
		}
	}
	return &coltrace.ExportTraceServiceResponse{}, nil
}

// TestTraceOfALargeFleet: however many classes and sources a change has, its trace is small; spans
// have the times of the steps, also if a clock was set back meanwhile.
func TestTraceOfALargeFleet(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r, srv := &receiver{spans: make(chan *tracepb.Span, 10000)}, grpc.NewServer()
	coltrace.RegisterTraceServiceServer(srv, r)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	defer func() {
		srv.Stop()
		<-served
	}()
	tracer, err := New(t.Context(), Config{Logger: slog.New(slog.DiscardHandler), Endpoint: "http://" + l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	p := registry.Publication{Generation: 7, Merging: at(100), Merged: at(110)}
	for i := range 100 {
		name := fmt.Sprint("files", i)
		tracer.Composed(files.Composed{Source: name, Noticed: at(i), Decoded: at(i + 1), Sent: at(i + 2)})
		p.Readings = append(p.Readings, registry.SourceReading{Source: name, First: at(i + 3), Last: at(i + 3)})
	}
	tracer.Published(p)
	for n := range 2 * maxChanges { // later ones, which no proxy answers
		tracer.Published(registry.Publication{Generation: uint64(8 + n)})
		if n == maxChanges-2 {
			rollout := xds.Rollout{
				Generation: 7, Started: at(111), Updated: at(120), Done: at(150), Affected: 9000, Accepted: 9000, ClassesMore: 8000, Complete: true,
				Work: xds.Work{Built: map[stream.TypeURL]xds.Amount{stream.ClusterType: {Resources: 1, Bytes: 99}}},
			}
			for range 5000 {
				rollout.Changes = append(rollout.Changes, mesh.Change{Key: mesh.Key{Name: "x"}})
			}
			for range 32 {
				rollout.Classes = append(rollout.Classes, xds.RolloutClass{Proxy: "web", Proxies: 30, Sent: at(121), First: at(130), Last: at(90)}) // the clock was set back
			}
			tracer.Answered(rollout)
		}
	}
	if n := len(tracer.changes); n > maxChanges {
		t.Errorf("%d changes are kept", n)
	}
	_ = tracer.Close(t.Context())
	close(r.spans)
	count, total := map[string]int{}, 0
	for s := range r.spans {
		count[s.GetName()]++
		total++
		if s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() {
			t.Errorf("%s ends before it begins", s.GetName())
		}
		if s.GetName() == "change" && (s.GetStartTimeUnixNano() != uint64(at(0).UnixNano()) || s.GetEndTimeUnixNano() != uint64(at(150).UnixNano()) || len(s.String()) > 4096) {
			t.Errorf("the change is %v", s)
		}
	}
	if count["change"] != 1 || count["class"] != 32 || count["decode"] != maxReadings || total > 140 {
		t.Errorf("%d spans: %v", total, count)
	}
}

// TestEndpointsAreChecked: a wrong endpoint ends the start of the server, with the reason.
func TestEndpointsAreChecked(t *testing.T) {
	for _, endpoint := range []string{"127.0.0.1:4317", "unix:///run/otlp", "http://"} {
		if _, err := New(t.Context(), Config{Logger: slog.New(slog.DiscardHandler), Endpoint: endpoint}); err == nil || !strings.Contains(err.Error(), "http://HOST:PORT") {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
	if _, err := New(t.Context(), Config{Logger: slog.New(slog.DiscardHandler), Endpoint: "http://127.0.0.1:4318"}); err == nil || !strings.Contains(err.Error(), "gRPC only") {
		t.Errorf("HTTP: %v", err)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
	if Endpoint() != "http://127.0.0.1:4317" {
		t.Errorf("the endpoint is %q", Endpoint())
	}
}

// TestReceiverHangs: a receiver that takes connections and never answers holds up neither the reports
// nor the end, and only so many spans wait for it.
func TestReceiverHangs(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0") // nobody accepts, but the kernel does
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	tracer, err := New(t.Context(), Config{Logger: slog.New(slog.DiscardHandler), Endpoint: "http://" + l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	ended := make(chan struct{})
	before := heap()
	go func() {
		defer close(ended)
		const changes = 20000 // ten times the SDK's queue, with the name of each kept
		name := strings.Repeat("x", 4096)
		for n := range changes {
			tracer.Published(registry.Publication{Generation: uint64(n + 1)})
			tracer.Answered(xds.Rollout{Generation: uint64(n + 1), Complete: true, Classes: []xds.RolloutClass{{Proxy: name + strconv.Itoa(n), Proxies: 1}}})
		}
	}()
	select {
	case <-ended:
	case <-time.After(envoytest.Patience):
		t.Fatal("reports wait for the receiver")
	}
	const most = 64 << 20 // all of them are 80 MB and more
	if grown := int64(heap()) - int64(before); grown > most {
		t.Errorf("%d bytes wait", grown)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = tracer.Close(context.WithoutCancel(t.Context()))
	}()
	select {
	case <-closed:
	case <-time.After(envoytest.Patience):
		t.Fatal("the end waits for the receiver")
	}
}
