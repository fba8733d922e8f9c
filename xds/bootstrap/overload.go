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

// Limits bound what an Envoy uses of its host.
type Limits struct {
	// MaxHeap bounds Envoy's heap, in bytes; 0 means unlimited. Near the limit, Envoy
	// first releases unused memory, then answers new requests with 503, and finally
	// accepts no new connections.
	MaxHeap uint64
	// MaxConnections bounds the open connections to its listeners, including those of the
	// host's own applications; further ones are closed. 0 means unlimited.
	MaxConnections int64
}

const (
	heapMonitor        = "envoy.resource_monitors.fixed_heap"
	connectionsMonitor = "envoy.resource_monitors.global_downstream_max_connections"
	overloadRefresh    = 250 * time.Millisecond
)

// heapSteps are Envoy's overload actions, by the share of MaxHeap in use.
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

// overloadManager enforces the limits; nil if there are none. The listeners for metrics
// and probes are exempt, so that the overload can be seen.
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
