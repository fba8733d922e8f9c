package server

import (
	"encoding/hex"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/tracing"
	"github.com/fairlead/fairlead/internal/otelcoltest"
	"github.com/fairlead/fairlead/xds/stream"
)

// TestChangesAreTraced: an edited file is one trace at a real Collector, with a span for each step
// in the order of the steps.
func TestChangesAreTraced(t *testing.T) {
	t.Parallel()
	collector := otelcoltest.Start(t)
	dir := treeOf(t, map[string]string{"a.yaml": entry("")})
	cfg := config(t, dir)
	var err error
	if cfg.Tracer, err = tracing.New(t.Context(), tracing.Config{Logger: slog.New(slog.DiscardHandler), Endpoint: "http://" + collector.GRPC, Version: "1.2.3"}); err != nil {
		t.Fatal(err)
	}
	r := start(t, cfg)
	proxy, _ := r.joined("one", "", nil).subscribe("one")
	for _, kind := range []stream.TypeURL{stream.EndpointType, stream.ListenerType, stream.RouteType} {
		if err := proxy.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: string(kind), ResourceNamesSubscribe: []string{"*"}}); err != nil {
			t.Fatal(err)
		}
	}
	answered := make(chan struct{}, 100)
	go func() { // accepts everything until the stream ends
		for {
			answer, err := proxy.Recv()
			answered <- struct{}{}
			if err != nil || proxy.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: answer.GetTypeUrl(), ResponseNonce: answer.GetNonce()}) != nil {
				return
			}
		}
	}()
	<-answered
	put(t, filepath.Join(dir, "b.yaml"), "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: orders, namespace: shop}\n"+
		"spec: {hosts: [orders.shop], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}\n")
	var change *tracepb.Span
	spans := map[string]*tracepb.Span{}
	r.eventually(func() error {
		all := map[string][]*tracepb.Span{}
		for _, of := range collector.Traces(t) {
			for _, scope := range of.GetScopeSpans() {
				for _, s := range scope.GetSpans() {
					id := hex.EncodeToString(s.GetTraceId())
					all[id] = append(all[id], s)
					if s.GetName() == "change" && strings.Contains(fmt.Sprint(s.GetAttributes()), "orders") {
						change = s
					}
				}
			}
		}
		if change == nil {
			return fmt.Errorf("no trace of the change, but %d others", len(all))
		}
		for _, s := range all[hex.EncodeToString(change.GetTraceId())] {
			spans[s.GetName()] = s
		}
		return nil
	})
	at := change.GetStartTimeUnixNano()
	for _, name := range []string{"decode", "fragment", "debounce", "snapshot", "views and encode", "encode and send", "answer"} {
		s := spans[name]
		if s == nil {
			t.Errorf("there is no span %q", name)
			continue
		}
		if s.GetStartTimeUnixNano() < at || s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() || s.GetEndTimeUnixNano() > change.GetEndTimeUnixNano() {
			t.Errorf("%s: from %d to %d; the step before began at %d, the change ended at %d", name, s.GetStartTimeUnixNano(), s.GetEndTimeUnixNano(), at, change.GetEndTimeUnixNano())
		}
		at = s.GetStartTimeUnixNano()
	}
	class := spans["class"]
	if class == nil || string(class.GetParentSpanId()) != string(change.GetSpanId()) || string(spans["answer"].GetParentSpanId()) != string(class.GetSpanId()) || len(change.GetParentSpanId()) != 0 {
		t.Errorf("wrong parents: %v", spans)
	}
	if text := fmt.Sprint(collector.Traces(t)[0].GetResource()); !strings.Contains(text, "fairlead-server") || !strings.Contains(text, "1.2.3") {
		t.Errorf("the resource is %s", text)
	}
}
