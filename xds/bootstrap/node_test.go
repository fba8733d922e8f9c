package bootstrap

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func ordersNode() *Node {
	return &Node{
		Type: TypeSidecar, Address: netip.MustParseAddr("127.0.0.11"), Name: "orders-v1", Namespace: "shop", Domain: "cluster.local",
		ServiceAccount: "orders", Labels: map[string]string{"app": "orders", "version": "v1"},
		Addresses:    []netip.Addr{netip.MustParseAddr("127.0.0.11"), netip.MustParseAddr("fd00::11")},
		WorkloadName: "orders-v1", MeshID: "m", ClusterID: "c", Network: "n", Interception: "NONE", IPv6: true,
		Locality: Locality{Region: "r", Zone: "z", SubZone: "s"}, AgentVersion: "v0",
	}
}

func TestNodeRoundTrip(t *testing.T) {
	t.Parallel()
	want := ordersNode()
	p, err := want.Proto()
	if err != nil {
		t.Fatal(err)
	}
	if got, id := p.GetId(), "sidecar~127.0.0.11~orders-v1.shop~shop.svc.cluster.local"; got != id {
		t.Errorf("id = %q, want %q", got, id)
	}
	p.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
		Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 40},
	}}
	want.EnvoyVersion = Version{Major: 1, Minor: 40}
	got, err := ParseNode(p)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("after a round trip (-want +got):\n%s", diff)
	}
}

// TestParseNodeOfIstio parses a node as Istio's agent writes it.
func TestParseNodeOfIstio(t *testing.T) {
	t.Parallel()
	metadata, err := structpb.NewStruct(map[string]any{
		"INSTANCE_IPS": "10.0.0.7,fe80::1", "LABELS": map[string]any{"app": "a"}, "PROXY_CONFIG": map[string]any{"x": 1},
		"ANNOTATIONS": map[string]any{}, "NAMESPACE": "vm", "SERVICE_ACCOUNT": "sa", "UNPRIVILEGED_POD": "true",
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseNode(&corev3.Node{Id: "sidecar~10.0.0.7~host.with.dots.vm~vm.svc.cluster.local", Metadata: metadata})
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "host.with.dots" || got.Namespace != "vm" || got.ServiceAccount != "sa" || got.Labels["app"] != "a" || len(got.Addresses) != 2 {
		t.Errorf("got %+v", got)
	}
}

func TestParseNodeRejects(t *testing.T) {
	t.Parallel()
	many := map[string]any{}
	for i := range maxLabels + 1 {
		many[strings.Repeat("k", i+1)] = "v"
	}
	with := func(key string, value any) *corev3.Node {
		v, err := structpb.NewValue(value)
		if err != nil {
			t.Fatal(err)
		}
		return &corev3.Node{
			Id: "sidecar~10.0.0.7~a.b~b.svc.cluster.local", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{key: v}},
		}
	}
	if _, err := ParseNode(with("NAMESPACE", "b")); err != nil {
		t.Fatalf("the node that the cases spoil is not good: %v", err)
	}
	for name, node := range map[string]*corev3.Node{
		"none":           nil,
		"empty":          {},
		"three_parts":    {Id: "sidecar~10.0.0.7~a.b"},
		"five_parts":     {Id: "sidecar~10.0.0.7~a.b~c~d"},
		"type":           {Id: "ztunnel~10.0.0.7~a.b~b.svc.cluster.local"},
		"address":        {Id: "sidecar~10.0.0~a.b~b.svc.cluster.local"},
		"no_namespace":   {Id: "sidecar~10.0.0.7~a~b.svc.cluster.local"},
		"no_name":        {Id: "sidecar~10.0.0.7~.b~b.svc.cluster.local"},
		"long":           {Id: "sidecar~10.0.0.7~" + strings.Repeat("a", maxIDLength) + ".b~b.svc.cluster.local"},
		"number":         with("NAMESPACE", 1),
		"control":        with("SERVICE_ACCOUNT", "a\nb"),
		"direction":      with("SERVICE_ACCOUNT", "a\u202eb"),
		"dotted":         with("NAMESPACE", "a.b"),
		"interception":   with("INTERCEPTION_MODE", "MAGIC"),
		"labels_text":    with("LABELS", "a=b"),
		"labels_many":    with("LABELS", many),
		"label_number":   with("LABELS", map[string]any{"a": 1}),
		"addresses":      with("INSTANCE_IPS", "10.0.0.7,x"),
		"addresses_bool": with("INSTANCE_IPS", true),
		"addresses_many": with("INSTANCE_IPS", strings.Repeat("10.0.0.7,", maxAddresses)+"10.0.0.7"),
		"long_value":     with("WORKLOAD_NAME", strings.Repeat("a", maxStringLength+1)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if n, err := ParseNode(node); !errors.Is(err, ErrNode) {
				t.Errorf("ParseNode = %+v, %v; want ErrNode", n, err)
			}
		})
	}
}

func FuzzParseNode(f *testing.F) {
	p, err := ordersNode().Proto()
	if err != nil {
		f.Fatal(err)
	}
	seed, err := proto.Marshal(p)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, b []byte) {
		var p corev3.Node
		if proto.Unmarshal(b, &p) != nil {
			return
		}
		n, err := ParseNode(&p)
		if err != nil {
			return
		}
		again, err := n.Proto()
		if err != nil {
			t.Fatalf("a parsed node cannot be encoded: %v", err)
		}
		if _, err := ParseNode(again); err != nil {
			t.Fatalf("a node that was written cannot be read: %v", err)
		}
	})
}

// TestFileSecretsAreAFeature: only an agent that says so serves certificates in files, or answers
// DNS queries.
func TestFileSecretsAreAFeature(t *testing.T) {
	t.Parallel()
	p, err := ordersNode().Proto()
	if err != nil {
		t.Fatal(err)
	}
	for _, features := range [][]string{nil, {FeatureVirtualHosts}, {FeatureVirtualHosts, FeatureFileSecrets}, {FeatureVirtualHosts, FeatureFileSecrets, FeatureNames}, {FeatureVirtualHosts, FeatureFileSecrets, FeatureFileLists, FeatureNames}} {
		p.ClientFeatures = features
		n, err := ParseNode(p)
		if want := len(features) >= 2; err != nil || n.FileSecrets != want || n.Names != (len(features) >= 3) || n.FileLists != (len(features) == 4) {
			t.Errorf("%v: %v, %v", features, n.FileSecrets, err)
		}
	}
}

// TestTimeIsNotKept: the time changes with every stream, so it is not in a node that is
// kept. A node with an invalid time is accepted.
func TestTimeIsNotKept(t *testing.T) {
	t.Parallel()
	plain, err := ordersNode().Proto()
	if err != nil {
		t.Fatal(err)
	}
	said := proto.CloneOf(plain)
	at := time.Date(2026, 2, 3, 4, 5, 6, 7, time.UTC)
	SetTime(said, at)
	got, err := ParseNode(said)
	if err != nil || !got.Time.Equal(at) {
		t.Errorf("read back as %v, %v", got, err)
	}
	again, err := got.Proto()
	if err != nil || !proto.Equal(again, plain) {
		t.Errorf("a node that is made again has %v, %v", again, err)
	}
	for _, s := range []string{"", "yesterday", "99999-01-01T00:00:00Z", "2026-02-03"} {
		said.Metadata.Fields[keyTime] = structpb.NewStringValue(s)
		if got, err := ParseNode(said); err != nil || !got.Time.IsZero() {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	bare := &corev3.Node{Id: plain.GetId()}
	SetTime(bare, at)
	if got, err := ParseNode(bare); err != nil || !got.Time.Equal(at) {
		t.Errorf("without metadata: %v, %v", got, err)
	}
}

// TestMetricsPort: an agent says where its page of metrics is; what is no port is as if it did not.
func TestMetricsPort(t *testing.T) {
	t.Parallel()
	n := Node{Type: TypeSidecar, Address: netip.MustParseAddr("10.0.0.1"), Name: "a", Namespace: "b", Domain: "c"}
	for text, want := range map[string]uint16{"": 0, "0": 0, "15021": 15021, "65535": 65535, "65536": 0, "-1": 0, "http": 0, "8 0": 0} {
		node, err := n.Proto()
		if err != nil {
			t.Fatal(err)
		}
		if text != "" {
			setMetadata(node, keyMetricsPort, text)
		}
		if got, err := ParseNode(node); err != nil || got.MetricsPort != want {
			t.Errorf("%q: %d, %v", text, got.MetricsPort, err)
		}
		SetMetricsPort(node, 7)
		if got, err := ParseNode(node); err != nil || got.MetricsPort != 7 {
			t.Errorf("%q, then 7: %d, %v", text, got.MetricsPort, err)
		}
	}
}
