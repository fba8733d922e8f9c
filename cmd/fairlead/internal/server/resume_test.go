package server

import (
	"context"
	"net"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
)

type calledFrom struct {
	grpc.ServerStream
	ctx context.Context
}

func (c calledFrom) Context() context.Context { return c.ctx }

// The bytes of every call are read at once, except those of proxies' streams: package xds
// decides when they are.
func TestOtherCallsDoNotWait(t *testing.T) {
	t.Parallel()
	r := start(t, config(t, treeOf(t, map[string]string{"a.yaml": plaintextMesh})))
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7}})
	streams, others := 0, 0
	for service, info := range r.Server.hosts.authenticated.GetServiceInfo() {
		for _, m := range info.Methods {
			resumed := ""
			called := false
			err := resumeOthers(func(address string) { resumed = address })(nil, calledFrom{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: "/" + service + "/" + m.Name},
				func(any, grpc.ServerStream) error {
					called = true
					return nil
				})
			if err != nil || !called {
				t.Errorf("%s: it is not called, %v", m.Name, err)
			}
			want := "192.0.2.1:7"
			if "/"+service+"/"+m.Name == discovery.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName {
				want = ""
				streams++
			} else {
				others++
			}
			if resumed != want {
				t.Errorf("%s: the connection of %q is read, want that of %q", m.Name, resumed, want)
			}
			if !m.IsClientStream {
				t.Errorf("%s is no stream: its message is read before the interceptor is called", m.Name)
			}
		}
	}
	if streams != 1 || others < 2 {
		t.Errorf("%d streams of proxies and %d others", streams, others)
	}
}
