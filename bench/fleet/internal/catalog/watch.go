package catalog

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const endpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"

// Watch is a stream that has endpoints and nothing else, and knows when each
// came into force.
type Watch struct {
	conn   *grpc.ClientConn
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	done   chan struct{}

	mu      sync.Mutex // guards all following fields
	healthy map[string]map[string]bool
	at      map[string]time.Time
	changed chan struct{} // closed at the next change
	err     error
}

// Cluster is that of a service.
func Cluster(service int) string { return "outbound|8080||" + Host(service) }

// NewWatch opens a stream in plaintext that subscribes to the endpoints of
// services.
func NewWatch(ctx context.Context, address string, node *corev3.Node, services []int) (*Watch, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("watching endpoints: %w", err)
	}
	w := &Watch{
		conn: conn, done: make(chan struct{}), healthy: map[string]map[string]bool{}, at: map[string]time.Time{},
		changed: make(chan struct{}),
	}
	w.stream, err = discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return nil, fmt.Errorf("watching endpoints: %w", err)
	}
	req := &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: endpointType}
	for _, s := range services {
		req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, Cluster(s))
	}
	if err := w.stream.Send(req); err != nil {
		return nil, fmt.Errorf("watching endpoints: %w", err)
	}
	go w.read()
	return w, nil
}

// Close ends the stream.
func (w *Watch) Close() error {
	err := w.conn.Close()
	<-w.done
	return err
}

func (w *Watch) read() {
	defer close(w.done)
	for {
		res, err := w.stream.Recv()
		at := time.Now()
		if err == nil {
			err = w.take(res, at)
		}
		if err == nil {
			err = w.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: res.GetTypeUrl(), ResponseNonce: res.GetNonce()})
		}
		if err != nil {
			w.mu.Lock()
			w.err = fmt.Errorf("watching endpoints: %w", err)
			close(w.changed)
			w.mu.Unlock()
			return
		}
	}
}

// take reads a response; the lock is held only then.
func (w *Watch) take(res *discoveryv3.DeltaDiscoveryResponse, at time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range res.GetResources() {
		var cla endpointv3.ClusterLoadAssignment
		if err := r.GetResource().UnmarshalTo(&cla); err != nil {
			return fmt.Errorf("reading endpoints: %w", err)
		}
		w.healthy[r.GetName()], w.at[r.GetName()] = healthy(&cla), at
	}
	close(w.changed)
	w.changed = make(chan struct{})
	return nil
}

// healthy are the addresses that get traffic.
func healthy(cla *endpointv3.ClusterLoadAssignment) map[string]bool {
	out := map[string]bool{}
	for _, l := range cla.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			switch e.GetHealthStatus() {
			case corev3.HealthStatus_UNHEALTHY, corev3.HealthStatus_DRAINING, corev3.HealthStatus_TIMEOUT:
			default:
				out[e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()] = true
			}
		}
	}
	return out
}

// Await waits until an address of a service gets traffic, or gets none, and says
// when that came.
func (w *Watch) Await(ctx context.Context, service int, address string, in bool) (time.Time, error) {
	name := Cluster(service)
	for {
		w.mu.Lock()
		have, known := w.healthy[name]
		at, changed, err := w.at[name], w.changed, w.err
		got := have[address]
		w.mu.Unlock()
		switch {
		case err != nil:
			return at, err
		case known && got == in:
			return at, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return at, fmt.Errorf("%s of %s: %w; it has %d healthy endpoints", address, strings.TrimPrefix(name, "outbound|"), ctx.Err(), len(have))
		}
	}
}
