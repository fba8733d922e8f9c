package stream

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// returning is the first request of a proxy that reconnects with n resources.
func returning(tb testing.TB, n int) []byte {
	tb.Helper()
	req := &discovery.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~10.0.0.1~a.b~c", ClientFeatures: []string{"f"}}, TypeUrl: string(EndpointType), ResponseNonce: "7",
		ResourceNamesUnsubscribe: []string{"gone"}, InitialResourceVersions: map[string]string{}, ErrorDetail: &status.Status{Message: "no"},
	}
	for i := range n {
		name := fmt.Sprintf("outbound|8080||svc-%05d.team-%02d.mesh.internal", i, i%10)
		req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, name)
		req.InitialResourceVersions[name] = fmt.Sprintf("version%04d", i)
	}
	b, err := proto.Marshal(req)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// Any bytes are decoded as proto.Unmarshal does, or rejected.
func FuzzDecodeRequest(f *testing.F) {
	f.Add(returning(f, 3), uint16(0))
	f.Add(returning(f, 50), uint16(64))
	f.Add([]byte{}, uint16(0))
	for _, b := range [][]byte{
		{0x1a, 0x02, 0xff, 0xfe},                   // no text
		{0x2a, 0x03, 0x0a, 0x01, 0xff},             // nor in the map
		{0x2a, 0x00, 0x2a, 0x02, 0x12, 0x00},       // entries without a key
		{0x2a, 0x04, 0x08, 0x01, 0x18, 0x01},       // entries of other types
		{0x18, 0x01, 0x28, 0x02, 0x4a, 0x01, 0x00}, // fields of other types, and unknown ones
		{0x0a, 0x02, 0x0a, 0x00, 0x0a, 0x04, 0x12, 0x02, 'a', 'b'},
		{0x1a, 0x05, 'a'},
	} {
		for size := range uint16(4) {
			f.Add(b, size)
		}
	}
	g := &Generation{Layers: []*Layer{
		{Name: "a", Types: map[TypeURL]*Set{EndpointType: NewSet([]*Resource{{Name: "ab", Version: "1"}, {Name: "outbound|8080||svc-00001.team-01.mesh.internal", Version: "version0001"}})}},
		{Name: "b", Types: map[TypeURL]*Set{EndpointType: NewSet([]*Resource{{Name: "b", Version: "1"}, {Name: ""}})}},
	}}
	f.Fuzz(func(t *testing.T, b []byte, size uint16) {
		want := &discovery.DeltaDiscoveryRequest{}
		wrong := proto.Unmarshal(b, want)
		buffers := bytes.Clone(b)
		frame := Frame{nil} // an empty buffer is no end
		if size == 0 {
			frame = append(frame, buffers)
		} else {
			frame = slices.AppendSeq(frame, slices.Chunk(buffers, int(size)))
		}
		got, err := DecodeRequest(frame, g, len(b))
		node, wrongNode := DecodeNode(frame)
		for i := range buffers { // they are used again for another message
			buffers[i] = 0xff
		}
		if (err == nil && wrongNode == nil) != (wrong == nil) {
			t.Fatalf("errors %v and %v, want %v", err, wrongNode, wrong)
		}
		if wrong != nil {
			return
		}
		if d := cmp.Diff(want.GetNode(), node, protocmp.Transform()); d != "" {
			t.Error(d)
		}
		want.Node = nil
		for _, v := range got.Versions {
			if r := got.known.at(int(v.index) - 1); v.index > 0 && r.Name != v.Name {
				t.Errorf("%q is not at the index of %q", r.Name, v.Name)
			}
			if got.InitialResourceVersions == nil {
				got.InitialResourceVersions = map[string]string{}
			}
			got.InitialResourceVersions[v.Name] = v.Version
		}
		if d := cmp.Diff(want, got.DeltaDiscoveryRequest, protocmp.Transform()); d != "" {
			t.Error(d)
		}
		got.Release()
	})
}

// Lists over the limit are rejected before they take memory.
func TestDecodeLimits(t *testing.T) {
	t.Parallel()
	for name, b := range map[string][]byte{
		"subscribe": bytes.Repeat([]byte{0x1a, 0}, 4), "unsubscribe": bytes.Repeat([]byte{0x22, 0}, 4), "versions": bytes.Repeat([]byte{0x2a, 0}, 4),
	} {
		if _, err := DecodeRequest(Frame{b}, nil, 3); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: 4 names, at most 3: %v", name, err)
		}
	}
	node := protowire.AppendBytes(protowire.AppendTag(nil, requestNode, protowire.BytesType), make([]byte, maxNode+1))
	if _, err := DecodeNode(Frame{node}); !errors.Is(err, ErrLimit) {
		t.Errorf("a node of %d bytes: %v", len(node), err)
	}
}

// The cost of the first request of a proxy that reconnects.
func BenchmarkDecodeRequest(b *testing.B) {
	frame := returning(b, 2000)
	want := &discovery.DeltaDiscoveryRequest{}
	if err := proto.Unmarshal(frame, want); err != nil {
		b.Fatal(err)
	}
	var list []*Resource
	for name, version := range want.GetInitialResourceVersions() {
		list = append(list, &Resource{Name: name, Version: version})
	}
	g := &Generation{Layers: []*Layer{{Name: "a", Types: map[TypeURL]*Set{EndpointType: NewSet(list)}}}}
	for name, g := range map[string]*Generation{"known": g, "unknown": nil} {
		b.Run(name, func(b *testing.B) {
			buffers := Frame(slices.Collect(slices.Chunk(frame, 16<<10)))
			b.ReportAllocs()
			for b.Loop() {
				req, err := DecodeRequest(buffers, g, 2000)
				if err != nil {
					b.Fatal(err)
				}
				req.Release()
			}
		})
	}
	b.Run("proto", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := proto.Unmarshal(frame, new(discovery.DeltaDiscoveryRequest)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// A request whose names the generation has is decoded without a copy of them, so that it
// takes little memory while a fleet returns. That of other names is bounded by the request.
func TestKnownNamesAreNotCopied(t *testing.T) { //nolint:paralleltest // it counts the allocations of the process
	const n = 4000
	frame := returning(t, n)
	want := &discovery.DeltaDiscoveryRequest{}
	if err := proto.Unmarshal(frame, want); err != nil {
		t.Fatal(err)
	}
	var list []*Resource
	for name, version := range want.GetInitialResourceVersions() {
		list = append(list, &Resource{Name: name, Version: version})
	}
	g := &Generation{Layers: []*Layer{{Name: "a", Types: map[TypeURL]*Set{EndpointType: NewSet(list)}}}}
	buffers := Frame(slices.Collect(slices.Chunk(frame, 16<<10)))
	allocations := testing.AllocsPerRun(20, func() {
		req, err := DecodeRequest(buffers, g, n)
		if err != nil || len(req.Versions) != n || len(req.GetResourceNamesSubscribe()) != n {
			t.Fatalf("%d versions, err %v", len(req.Versions), err)
		}
		req.Release()
	})
	if allocations > n/20 { // a few for each buffer
		t.Errorf("%v allocations for %d known names and versions", allocations, n)
	}
}
