package vhds_test

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/xds/vhds"
)

func marshal(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		tb.Fatalf("marshaling: %v", err)
	}
	return body
}

func adsVHDS() *routev3.Vhds {
	return &routev3.Vhds{ConfigSource: &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}}
}

func vhost(name string, domains ...string) *routev3.VirtualHost {
	return &routev3.VirtualHost{
		Name: name, Domains: domains, IncludeRequestAttemptCount: true,
		Routes: []*routev3.Route{{Name: "r", Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}}},
	}
}

// expected is what merging means, by decoding everything.
func expected(base *routev3.RouteConfiguration, hosts []*routev3.VirtualHost) *routev3.RouteConfiguration {
	out := proto.CloneOf(base)
	out.Vhds = nil
	hosts = slices.Clone(hosts)
	slices.SortFunc(hosts, func(a, b *routev3.VirtualHost) int { return strings.Compare(a.GetName(), b.GetName()) })
	for _, h := range hosts {
		h = proto.CloneOf(h)
		h.Name = strings.TrimPrefix(h.GetName(), base.GetName()+"/")
		out.VirtualHosts = append(out.VirtualHosts, h)
	}
	return out
}

func TestMerge(t *testing.T) {
	t.Parallel()
	full := &routev3.RouteConfiguration{
		Name: "8080", Vhds: adsVHDS(), ValidateClusters: wrapperspb.Bool(false), IgnorePortInHostMatching: true,
		MaxDirectResponseBodySizeBytes: wrapperspb.UInt32(1 << 20),
	}
	mixed := proto.CloneOf(full)
	mixed.VirtualHosts = []*routev3.VirtualHost{vhost("z", "z.mesh")}
	for name, c := range map[string]struct {
		base  *routev3.RouteConfiguration
		hosts []*routev3.VirtualHost
	}{
		"nothing":       {&routev3.RouteConfiguration{Name: "8080"}, nil},
		"no_hosts":      {full, nil},
		"unsorted":      {full, []*routev3.VirtualHost{vhost("8080/b", "b"), vhost("8080/allow_any", "*"), vhost("8080/a:80", "a", "a.")}},
		"inline":        {mixed, []*routev3.VirtualHost{vhost("8080/a", "a")}},
		"long":          {full, []*routev3.VirtualHost{vhost("8080/"+strings.Repeat("a", 300), strings.Repeat("x", 1000))}},
		"bare":          {full, []*routev3.VirtualHost{{Name: "8080/a"}}},
		"slash_in_name": {&routev3.RouteConfiguration{Name: "/run/x", Vhds: adsVHDS()}, []*routev3.VirtualHost{vhost("/run/x/a", "a")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var hosts [][]byte
			for _, h := range c.hosts {
				hosts = append(hosts, marshal(t, h))
			}
			got, err := vhds.Merge(marshal(t, c.base), hosts)
			if err != nil {
				t.Fatalf("merging: %v", err)
			}
			if want := marshal(t, expected(c.base, c.hosts)); !bytes.Equal(got, want) {
				t.Errorf("other bytes than those of the message:\n%x\n%x", got, want)
			}
		})
	}
}

// TestMergeUnusualEncodings has the same messages in forms that no library writes and
// every one reads.
func TestMergeUnusualEncodings(t *testing.T) {
	t.Parallel()
	name := func(s string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), s)
	}
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 1999, protowire.VarintType), 7)
	body := marshal(t, &routev3.VirtualHost{Domains: []string{"a"}})
	for what, host := range map[string][]byte{
		"name_last":  slices.Concat(body, name("t/a")),
		"name_twice": slices.Concat(name("other"), body, name("t/a")),
		"unknown":    slices.Concat(unknown, name("t/a"), body),
	} {
		base := slices.Concat(unknown, name("no"), marshal(t, &routev3.RouteConfiguration{Vhds: adsVHDS()}), name("t"))
		got, err := vhds.Merge(base, [][]byte{host})
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		compare(t, what, got, base, [][]byte{host})
	}
}

// compare has Fold's result beside that of decoding.
func compare(t *testing.T, what string, got, base []byte, hosts [][]byte) {
	t.Helper()
	rc, out := &routev3.RouteConfiguration{}, &routev3.RouteConfiguration{}
	if proto.Unmarshal(base, rc) != nil {
		return // only the outermost fields are looked at
	}
	var list []*routev3.VirtualHost
	for _, h := range hosts {
		vh := &routev3.VirtualHost{}
		if proto.Unmarshal(h, vh) != nil {
			return
		}
		list = append(list, vh)
	}
	if err := proto.Unmarshal(got, out); err != nil {
		t.Fatalf("%s: the result cannot be read: %v", what, err)
	}
	if diff := cmp.Diff(expected(rc, list), out, protocmp.Transform()); diff != "" {
		t.Errorf("%s: (-want +got)\n%s", what, diff)
	}
}

func TestMergeRejects(t *testing.T) {
	t.Parallel()
	base := marshal(t, &routev3.RouteConfiguration{Name: "t", Vhds: adsVHDS()})
	for what, c := range map[string]struct {
		base  []byte
		hosts [][]byte
	}{
		"another_table": {base, [][]byte{marshal(t, vhost("u/a", "a"))}},
		"no_table":      {base, [][]byte{marshal(t, vhost("a", "a"))}},
		"no_host":       {base, [][]byte{marshal(t, vhost("t/", "a"))}},
		"twice":         {base, [][]byte{marshal(t, vhost("t/a", "a")), marshal(t, vhost("t/b", "b")), marshal(t, vhost("t/a", "c"))}},
		"broken_host":   {base, [][]byte{marshal(t, vhost("t/a", "a"))[:10]}},
		"broken_base":   {base[:len(base)-1], nil},
	} {
		if got, err := vhds.Merge(c.base, c.hosts); err == nil {
			t.Errorf("%s: merged to %x", what, got)
		}
	}
}

func TestIsBase(t *testing.T) {
	t.Parallel()
	with := marshal(t, &routev3.RouteConfiguration{Name: "t", Vhds: adsVHDS()})
	without := marshal(t, &routev3.RouteConfiguration{Name: "t", VirtualHosts: []*routev3.VirtualHost{vhost("a", "a")}})
	if !vhds.IsBase(with) || vhds.IsBase(without) || vhds.IsBase(with[:len(with)-1]) {
		t.Error("a table with vhds is not told from others")
	}
}

// FuzzMerge looks for input that merges to something else than decoding says.
func FuzzMerge(f *testing.F) {
	base := marshal(f, &routev3.RouteConfiguration{Name: "t", Vhds: adsVHDS(), IgnorePortInHostMatching: true})
	f.Add(base, marshal(f, vhost("t/b", "b")), marshal(f, vhost("t/a", "a", "b")))
	f.Add(base, []byte{}, []byte{0x0a, 0x03, 't', '/', 'x'})
	f.Add([]byte{0x0a, 0x01, 't', 0x12, 0x00, 0x4a, 0x00}, []byte{0x08, 0x01, 0x0a, 0x03, 't', '/', 'x'}, []byte{0x0a, 0x03, 't', '/', 'y'})
	f.Fuzz(func(t *testing.T, base, a, b []byte) {
		hosts := [][]byte{a, b}
		before := slices.Concat(base, a, b)
		got, err := vhds.Merge(base, hosts)
		if !bytes.Equal(before, slices.Concat(base, a, b)) {
			t.Error("what was given is no longer the same")
		}
		if err == nil {
			compare(t, "fuzz", got, base, hosts)
		}
	})
}

func BenchmarkMerge(b *testing.B) {
	base := marshal(b, &routev3.RouteConfiguration{Name: "8080", Vhds: adsVHDS()})
	hosts := make([][]byte, 0, 1000)
	for i := range 1000 {
		h := vhost("8080/"+strconv.Itoa(1000+i)+".mesh:8080", strconv.Itoa(i)+".mesh")
		h.Routes[0].Decorator = &routev3.Decorator{Operation: strings.Repeat("x", 400)}
		hosts = append(hosts, marshal(b, h))
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := vhds.Merge(base, hosts); err != nil {
			b.Fatal(err)
		}
	}
}
