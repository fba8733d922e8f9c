package stream_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/stream"
)

// controlPlane is a minimal control plane around the server half: one loop a stream, all
// streams with the same generation.
type controlPlane struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	addr string

	mu      sync.Mutex // guards all following fields
	grpc    *grpc.Server
	served  chan struct{}
	target  *stream.Generation
	changed chan struct{} // closed when target changes
	status  []stream.TypeStatus
	events  []stream.Event
	streams int
	sent    int            // resources
	cutAt   stream.TypeURL // the stream is cut instead of sending a response of this type
	cutMore bool           // later streams are cut, too
	cutOnes int
}

func newControlPlane(t testing.TB) *controlPlane {
	t.Helper()
	p := &controlPlane{changed: make(chan struct{}), addr: fmt.Sprintf("127.0.0.1:%d", envoytest.FreePorts(t, 1)[0])}
	p.start(t)
	t.Cleanup(p.stop)
	return p
}

func (p *controlPlane) start(t testing.TB) {
	t.Helper()
	var l net.Listener
	envoytest.Eventually(t, envoytest.Patience, func() (err error) {
		var lc net.ListenConfig
		l, err = lc.Listen(t.Context(), "tcp", p.addr)
		return err
	})
	g := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(g, p)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = g.Serve(l)
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.grpc, p.served = g, served
	p.status, p.events, p.streams, p.sent = nil, nil, 0, 0
}

// stop ends the server at once, as kill -9 does.
func (p *controlPlane) stop() {
	p.mu.Lock()
	g, served := p.grpc, p.served
	p.mu.Unlock()
	g.Stop()
	<-served
}

func (p *controlPlane) set(g *stream.Generation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = g
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *controlPlane) DeltaAggregatedResources(g grpc.BidiStreamingServer[discovery.DeltaDiscoveryRequest, discovery.DeltaDiscoveryResponse]) error {
	core := stream.NewServer(stream.ServerConfig{})
	requests := make(chan *discovery.DeltaDiscoveryRequest)
	go func() {
		defer close(requests)
		for {
			r, err := g.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- r:
			case <-g.Context().Done():
				return
			}
		}
	}()
	p.mu.Lock()
	p.streams++
	p.mu.Unlock()
	for {
		p.mu.Lock()
		target, changed := p.target, p.changed
		p.mu.Unlock()
		if target != nil {
			core.SetGeneration(target)
		}
		sent := 0
		for r := core.Next(time.Now()); r != nil; r = core.Next(time.Now()) {
			if p.isCut(r.TypeURL) {
				return errCut
			}
			sent += len(r.Resources)
			if err := g.Send(r.Message()); err != nil {
				return err
			}
		}
		p.mu.Lock()
		p.status, p.events, p.sent = core.Status(), append(p.events, core.Events()...), p.sent+sent
		p.mu.Unlock()
		var deadline <-chan time.Time
		if d := core.NextDeadline(); !d.IsZero() {
			deadline = time.After(time.Until(d))
		}
		select {
		case <-g.Context().Done():
			return nil
		case <-changed:
		case <-deadline:
		case r, ok := <-requests:
			if !ok {
				return nil
			}
			if err := core.Request(time.Now(), r); err != nil {
				return err
			}
		}
	}
}

var errCut = errors.New("the stream is cut")

// cut ends the stream instead of sending the next response of a type.
func (p *controlPlane) cut(url stream.TypeURL) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutAt = url
}

// keepCutting cuts later streams, too.
func (p *controlPlane) keepCutting(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cutMore = on; !on {
		p.cutAt = ""
	}
}

func (p *controlPlane) isCut(url stream.TypeURL) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cutAt != url {
		return false
	}
	if !p.cutMore {
		p.cutAt = ""
	}
	p.cutOnes++
	p.status = nil
	return true
}

func (p *controlPlane) cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cutOnes
}

// waitConverged waits until the Envoy has answered everything of a generation.
func (p *controlPlane) waitConverged(t testing.TB, number uint64) []stream.TypeStatus {
	t.Helper()
	var status []stream.TypeStatus
	envoytest.Eventually(t, envoytest.Patience, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.status) < 2 {
			return fmt.Errorf("only %d types are subscribed", len(p.status))
		}
		for _, st := range p.status {
			if st.Pending || st.ConvergedGeneration != number {
				return fmt.Errorf("%s has not converged: %+v", st.Type.Short(), st)
			}
		}
		status = p.status
		return nil
	})
	return status
}

func (p *controlPlane) sentSoFar() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent
}

// testMesh makes generations of real resources.
type testMesh struct {
	t       testing.TB
	number  uint64
	backend int // port
	port    int // of the listener
	types   map[stream.TypeURL]map[string]*stream.Resource
}

func newTestMesh(t testing.TB) *testMesh {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }))
	t.Cleanup(srv.Close)
	return &testMesh{
		t: t, backend: srv.Listener.Addr().(*net.TCPAddr).Port, port: envoytest.FreePorts(t, 1)[0],
		types: map[stream.TypeURL]map[string]*stream.Resource{},
	}
}

// generation is the mesh as it is now.
func (w *testMesh) generation() *stream.Generation {
	w.number++
	l := &stream.Layer{Types: map[stream.TypeURL]*stream.Set{}}
	for t, rs := range w.types {
		l.Types[t] = stream.NewSet(slices.Collect(maps.Values(rs)))
	}
	return &stream.Generation{Number: w.number, Layers: []*stream.Layer{l}}
}

func (w *testMesh) put(t stream.TypeURL, name string, m proto.Message) {
	w.t.Helper()
	w.putResource(t, stream.Resource{Name: name}, m)
}

// putResource adds a resource; version and body are made from the message.
func (w *testMesh) putResource(t stream.TypeURL, r stream.Resource, m proto.Message) {
	w.t.Helper()
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		w.t.Fatal(err)
	}
	if w.types[t] == nil {
		w.types[t] = map[string]*stream.Resource{}
	}
	sum := sha256.Sum256(body)
	r.Version, r.Body = hex.EncodeToString(sum[:8]), body
	w.types[t][r.Name] = stream.NewResource(t, r)
}

func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}, ResourceApiVersion: corev3.ApiVersion_V3,
	}
}

// cluster adds a cluster with its endpoint; change may be nil.
func (w *testMesh) cluster(name string, change func(*clusterv3.Cluster)) {
	w.t.Helper()
	c := &clusterv3.Cluster{
		Name: name, ConnectTimeout: durationpb.New(time.Second),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads()},
	}
	if change != nil {
		change(c)
	}
	w.put(stream.ClusterType, name, c)
	address := &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(w.backend)},
	}}}
	w.put(stream.EndpointType, name, &endpointv3.ClusterLoadAssignment{
		ClusterName: name,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}},
		}}}},
	})
}

func (w *testMesh) drop(name string) {
	delete(w.types[stream.ClusterType], name)
	delete(w.types[stream.EndpointType], name)
}

func (w *testMesh) listener(name string, port int, statPrefix string) {
	w.t.Helper()
	w.listenerOf("routes", name, port, statPrefix)
}

// listenerOf adds a listener that uses a route configuration.
func (w *testMesh) listenerOf(routeConfig, name string, port int, statPrefix string) {
	w.t.Helper()
	hcm := &hcmv3.HttpConnectionManager{
		StatPrefix: statPrefix,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
			ConfigSource: ads(), RouteConfigName: routeConfig,
		}},
		HttpFilters: []*hcmv3.HttpFilter{{Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: w.any(&routerv3.Router{})}}},
	}
	w.put(stream.ListenerType, name, &listenerv3.Listener{
		Name: name,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
		}}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: w.any(hcm)},
		}}}},
	})
}

func (w *testMesh) any(m proto.Message) *anypb.Any {
	w.t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// route routes everything to a cluster.
func (w *testMesh) route(cluster string) {
	w.t.Helper()
	w.put(stream.RouteType, "routes", &routev3.RouteConfiguration{
		Name: "routes",
		VirtualHosts: []*routev3.VirtualHost{{
			Name: "all", Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}},
			}},
		}},
	})
}

// envoy starts an Envoy of a release that connects to the control plane.
func (p *controlPlane) envoy(t testing.TB, version string) *envoytest.Envoy {
	t.Helper()
	host, port, err := net.SplitHostPort(p.addr)
	if err != nil {
		t.Fatal(err)
	}
	return envoytest.Start(t, envoytest.Config{Version: version, Bootstrap: fmt.Appendf(nil, `{
		"node": {"id": "test", "cluster": "test"},
		"admin": {"address":{"socket_address":{"address":"127.0.0.1","port_value":0}}},
		"dynamic_resources": {
			"ads_config": {"api_type": "DELTA_GRPC", "transport_api_version": "V3", "set_node_on_first_message_only": true,
				"grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]},
			"cds_config": {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"},
			"lds_config": {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}},
		"static_resources": {"clusters": [{"name": "xds", "connect_timeout": "1s",
			"typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
				"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
				"explicit_http_config": {"http2_protocol_options": {}}}},
			"load_assignment": {"cluster_name": "xds", "endpoints": [{"lb_endpoints": [{"endpoint":
				{"address": {"socket_address": {"address": %q, "port_value": %s}}}}]}]}}]}}`, host, port)})
}
