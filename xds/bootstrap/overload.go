package bootstrap

import (
	"fmt"
	"time"

	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	connectionsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	heapv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Limits bound what an Envoy takes of its host, whoever connects to it.
type Limits struct {
	// MaxHeap is what it may have on its heap, in bytes; 0 means no bound. Near to it
	// Envoy gives back what it does not need, then answers new requests with 503, and
	// last takes no new connections.
	MaxHeap uint64
	// MaxConnections is how many connections to its listeners may be open, those of
	// the host's own applications included; one more is closed. 0 means no bound.
	MaxConnections int64
}

const (
	heapMonitor        = "envoy.resource_monitors.fixed_heap"
	connectionsMonitor = "envoy.resource_monitors.global_downstream_max_connections"
	overloadRefresh    = 250 * time.Millisecond
)

// heapSteps are what Envoy does when so much of MaxHeap is in use.
func heapSteps() []struct {
	action string
	share  float64
} {
	return []struct {
		action string
		share  float64
	}{
		{"envoy.overload_actions.shrink_heap", 0.9},
		{"envoy.overload_actions.stop_accepting_requests", 0.95},
		{"envoy.overload_actions.stop_accepting_connections", 0.98},
	}
}

// overloadManager is what holds an Envoy to its limits; nil if it has none. The
// listeners for metrics and probes are exempt: they say that it is overloaded.
func overloadManager(l Limits) (*overloadv3.OverloadManager, error) {
	if l == (Limits{}) {
		return nil, nil //nolint:nilnil // a field that is not set
	}
	m := &overloadv3.OverloadManager{RefreshInterval: durationpb.New(overloadRefresh)}
	monitor := func(name string, config proto.Message) error {
		a, err := anypb.New(config)
		if err != nil {
			return fmt.Errorf("marshalling the resource monitor %s: %w", name, err)
		}
		m.ResourceMonitors = append(m.ResourceMonitors, &overloadv3.ResourceMonitor{
			Name: name, ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: a},
		})
		return nil
	}
	if l.MaxHeap > 0 {
		if err := monitor(heapMonitor, &heapv3.FixedHeapConfig{MaxHeapSizeBytes: l.MaxHeap}); err != nil {
			return nil, err
		}
		for _, s := range heapSteps() {
			m.Actions = append(m.Actions, &overloadv3.OverloadAction{Name: s.action, Triggers: []*overloadv3.Trigger{{
				Name:         heapMonitor,
				TriggerOneof: &overloadv3.Trigger_Threshold{Threshold: &overloadv3.ThresholdTrigger{Value: s.share}},
			}}})
		}
	}
	if l.MaxConnections > 0 {
		if err := monitor(connectionsMonitor, &connectionsv3.DownstreamConnectionsConfig{MaxActiveDownstreamConnections: l.MaxConnections}); err != nil {
			return nil, err
		}
	}
	return m, nil
}
