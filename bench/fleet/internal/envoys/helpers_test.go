package envoys

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/envoytest"
)

const patience = envoytest.Patience

// plane is a server whose every answer the test gives.
type plane struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	t        *testing.T
	address  string
	requests chan *discovery.DeltaDiscoveryRequest

	mu     sync.Mutex // guards the following field
	stream grpc.BidiStreamingServer[discovery.DeltaDiscoveryRequest, discovery.DeltaDiscoveryResponse]
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	p := &plane{t: t, requests: make(chan *discovery.DeltaDiscoveryRequest, 1000)}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.address = l.Addr().String()
	g := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(g, p)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
	return p
}

func (p *plane) DeltaAggregatedResources(s grpc.BidiStreamingServer[discovery.DeltaDiscoveryRequest, discovery.DeltaDiscoveryResponse]) error {
	p.mu.Lock()
	p.stream = s
	p.mu.Unlock()
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		if r.GetTypeUrl() == "end" {
			return errors.New("ended by the test")
		}
		p.requests <- r
	}
}

// next is the next request, without what the wire says in any case.
func (p *plane) next() *discovery.DeltaDiscoveryRequest {
	p.t.Helper()
	select {
	case r := <-p.requests:
		slices.Sort(r.ResourceNamesSubscribe)
		slices.Sort(r.ResourceNamesUnsubscribe)
		return r
	case <-time.After(patience):
		p.t.Fatal("no request came")
		return nil
	}
}

// silent fails if a request has come.
func (p *plane) silent() {
	p.t.Helper()
	select {
	case r := <-p.requests:
		p.t.Fatalf("unexpected: %v", r)
	default:
	}
}

func (p *plane) send(nonce string, k Kind, removed []string, resources ...named) {
	p.t.Helper()
	m := &discovery.DeltaDiscoveryResponse{TypeUrl: typeURLs[k], Nonce: nonce, RemovedResources: removed}
	for _, r := range resources {
		body, err := anypb.New(r)
		if err != nil {
			p.t.Fatal(err)
		}
		name := r.GetName()
		m.Resources = append(m.Resources, &discovery.Resource{Name: name, Version: "v" + nonce, Resource: body})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.stream.Send(m); err != nil {
		p.t.Fatal(err)
	}
}

type named interface {
	proto.Message
	GetName() string
}

// assignment has a name as other resources do.
type assignment struct {
	*endpointv3.ClusterLoadAssignment
}

func (a assignment) GetName() string { return a.GetClusterName() }

func cluster(name string) named {
	return &clusterv3.Cluster{
		Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		}},
	}
}

func static(name string) named {
	return &clusterv3.Cluster{Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}}
}

func endpoints(name string) named {
	return assignment{&endpointv3.ClusterLoadAssignment{ClusterName: name}}
}

func listener(t *testing.T, name string, routes ...string) named {
	t.Helper()
	l := &listenerv3.Listener{Name: name, Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 8080},
	}}}}
	for _, r := range routes {
		hcm, err := anypb.New(&hcmv3.HttpConnectionManager{StatPrefix: "x", RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
			RouteConfigName: r, ConfigSource: &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{Filters: []*listenerv3.Filter{{
			Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: hcm},
		}}})
	}
	return l
}

func table(name string, vhds bool) named {
	r := &routev3.RouteConfiguration{Name: name}
	if vhds {
		r.Vhds = &routev3.Vhds{ConfigSource: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		}}
	}
	return r
}

func virtualHost(name string, domains ...string) named {
	return &routev3.VirtualHost{Name: name, Domains: domains}
}

func newFleet(t *testing.T, p *plane, size int, more func(cfg *Config)) *Fleet {
	t.Helper()
	cfg := Config{
		Size: size, Authority: p.address, VHDS: true,
		Node: func(int) []byte {
			b, err := proto.Marshal(&corev3.Node{Id: "me"})
			if err != nil {
				t.Error(err)
			}
			return b
		},
		Dial: func(ctx context.Context, _ int) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", p.address)
		},
	}
	if more != nil {
		more(&cfg)
	}
	f := New(cfg)
	f.Start(t.Context())
	t.Cleanup(f.Close)
	return f
}
