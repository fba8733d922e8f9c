package ecds_test

import (
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/xds/ecds"
)

func pack(tb testing.TB, m proto.Message) *anypb.Any {
	tb.Helper()
	a, err := anypb.New(m)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

// chain is a filter chain with an HTTP connection manager whose filters are given by name:
// those with a "+" are extensions.
func chain(tb testing.TB, names ...string) *listenerv3.FilterChain {
	tb.Helper()
	hcm := &hcmv3.HttpConnectionManager{StatPrefix: "in"}
	for _, name := range names {
		f := &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: &anypb.Any{TypeUrl: "x"}}}
		if name[0] == '+' {
			f = &hcmv3.HttpFilter{Name: name[1:], ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{
				ConfigSource: &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{}}, TypeUrls: []string{"y"},
			}}}
		}
		hcm.HttpFilters = append(hcm.HttpFilters, f)
	}
	return &listenerv3.FilterChain{Name: "c", Filters: []*listenerv3.Filter{
		{Name: "tcp", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(tb, &tcpv3.TcpProxy{StatPrefix: "t"})}},
		{Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(tb, hcm)}},
	}}
}

func TestNamesOfAListener(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		listener *listenerv3.Listener
		want     []string
	}{
		"none": {&listenerv3.Listener{Name: "l", FilterChains: []*listenerv3.FilterChain{chain(t, "a", "b")}}, nil},
		"several chains": {&listenerv3.Listener{
			Name: "l", FilterChains: []*listenerv3.FilterChain{chain(t, "a", "+z", "b"), chain(t, "+deny", "+z")},
			DefaultFilterChain: chain(t, "+default"), Freebind: nil, TrafficDirection: corev3.TrafficDirection_INBOUND,
		}, []string{"default", "deny", "z"}},
		"empty": {&listenerv3.Listener{}, nil},
	} {
		body, err := proto.Marshal(c.listener)
		if err != nil {
			t.Fatal(err)
		}
		if got := ecds.Names(body); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func FuzzNames(f *testing.F) {
	body, err := proto.Marshal(&listenerv3.Listener{Name: "l", FilterChains: []*listenerv3.FilterChain{chain(f, "+a", "b")}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Fuzz(func(t *testing.T, b []byte) {
		if names := ecds.Names(b); !slices.IsSorted(names) {
			t.Errorf("not sorted: %q", names)
		}
	})
}
