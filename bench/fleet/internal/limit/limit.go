package limit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// Server fans messages out.
type Server struct {
	cold, listeners []byte

	mu   sync.Mutex // guards the following field
	next *round
}

// round is one message that goes to everybody, once its channel is closed.
type round struct {
	begun chan struct{}
	msg   []byte
	after *round
}

func newRound() *round { return &round{begun: make(chan struct{})} }

// New makes a server that sends so many bytes to each stream when it begins.
func New(cold int) (*Server, error) {
	first, err := message("cold", cold)
	if err != nil {
		return nil, err
	}
	none, err := proto.Marshal(&discovery.DeltaDiscoveryResponse{
		TypeUrl: "type.googleapis.com/envoy.config.listener.v3.Listener", Nonce: "2", SystemVersionInfo: "1",
	})
	return &Server{cold: first, listeners: none, next: newRound()}, err
}

// message is a response of about so many bytes that an Envoy accepts: a cluster
// with a lot of metadata, the marker in it.
func message(marker string, size int) ([]byte, error) {
	c := &clusterv3.Cluster{
		Name: "limit", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"limit": {Fields: map[string]*structpb.Value{
			marker: structpb.NewStringValue(string(bytes.Repeat([]byte{'x'}, max(size-200, 1)))),
		}}}},
	}
	body, err := anypb.New(c)
	if err != nil {
		return nil, fmt.Errorf("encoding a message: %w", err)
	}
	b, err := proto.Marshal(&discovery.DeltaDiscoveryResponse{
		TypeUrl: body.GetTypeUrl(), Nonce: "1", SystemVersionInfo: "1",
		Resources: []*discovery.Resource{{Name: "limit", Version: marker, Resource: body}},
	})
	if err != nil {
		return nil, fmt.Errorf("encoding a message: %w", err)
	}
	return b, nil
}

// Push sends a message of so many bytes to all streams, and gives the moment
// before the first byte.
func (s *Server) Push(marker string, size int) (time.Time, error) {
	msg, err := message(marker, size)
	if err != nil {
		return time.Time{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.next
	now.msg, now.after = msg, newRound()
	s.next = now.after
	at := time.Now()
	close(now.begun)
	return at, nil
}

// GRPC is a gRPC server with the cheapest settings there are, on which s is
// served.
func (s *Server) GRPC(opts ...grpc.ServerOption) *grpc.Server {
	g := grpc.NewServer(append(opts,
		grpc.ForceServerCodecV2(codec{}), grpc.ReadBufferSize(0), grpc.WriteBufferSize(64<<10),
	)...)
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: "envoy.service.discovery.v3.AggregatedDiscoveryService", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "DeltaAggregatedResources", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return s.serve(stream) },
		}},
	}, nil)
	return g
}

func (s *Server) serve(stream grpc.ServerStream) error {
	ctx, cancel := context.WithCancel(stream.Context())
	s.mu.Lock()
	next := s.next
	s.mu.Unlock()
	asked := make(chan []byte, 2)
	go func() {
		defer cancel()
		for first := true; ; first = false {
			var request []byte
			if err := stream.RecvMsg(&request); err != nil {
				return
			}
			switch {
			case first:
				asked <- s.cold
			case bytes.Contains(request, []byte("listener")) && len(request) < len(s.listeners):
				select { // the first one is asked for once, and each is ACKed
				case asked <- s.listeners:
				default:
				}
			}
		}
	}()
	answered := false
	for {
		var msg []byte
		select {
		case <-ctx.Done():
			return nil
		case msg = <-asked:
			if answered && len(msg) == len(s.listeners) {
				continue
			}
			answered = answered || len(msg) == len(s.listeners)
		case <-next.begun:
			msg, next = next.msg, next.after
		}
		if err := stream.SendMsg(&msg); err != nil {
			return err
		}
	}
}

// codec passes bytes.
type codec struct{}

var errType = errors.New("a message is not bytes")

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, errType
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return errType
	}
	*b = data.Materialize()
	return nil
}

// Name implements [encoding.CodecV2].
func (codec) Name() string { return "proto" }
