package envoy_test

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// allRouteConfigurations are those of all golden files, and of a bigger mesh.
func allRouteConfigurations(t *testing.T) []*view.RouteConfiguration {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txtar")
	fatalIf(t, err, "listing testdata")
	views := []*view.View{view.Build(snapshotOf(t, manyServices(60), ""), ordinaryProxy())}
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		fatalIf(t, err, "reading %q", path)
		var pf proxyFile
		fatalIf(t, yaml.Unmarshal([]byte(file(a, "proxy.yaml")), &pf), "reading proxy.yaml")
		views = append(views, view.Build(snapshotOf(t, file(a, "mesh.yaml"), file(a, "meshconfig.yaml")), pf.proxy()))
	}
	var out []*view.RouteConfiguration
	for _, v := range views {
		for p := range v.Parts() {
			if rc, ok := p.(*view.RouteConfiguration); ok {
				out = append(out, rc)
			}
		}
	}
	if len(out) < 10 {
		t.Fatalf("only %d route configurations", len(out))
	}
	return out
}

func decodeAs[T proto.Message](t *testing.T, r envoy.Resource) T {
	t.Helper()
	m, err := envoy.Decode(r)
	fatalIf(t, err, "decoding %q", r.Name)
	out, ok := m.(T)
	if !ok {
		t.Fatalf("%q is a %T", r.Name, m)
	}
	if v, ok := m.(interface{ ValidateAll() error }); !ok || v.ValidateAll() != nil {
		t.Errorf("%q is not valid", r.Name)
	}
	return out
}

// TestInlineHasVirtualHostsOfVHDS merges the resources by decoding them, and expects the
// bytes of the inline route configuration.
func TestInlineHasVirtualHostsOfVHDS(t *testing.T) {
	t.Parallel()
	for _, rc := range allRouteConfigurations(t) {
		routes, _ := envoy.BuildVHDSRoutes(rc)
		want := decodeAs[*routev3.RouteConfiguration](t, routes.Base)
		want.Vhds = nil
		for _, r := range routes.VirtualHosts {
			h := decodeAs[*routev3.VirtualHost](t, r)
			h.Name = strings.TrimPrefix(h.GetName(), rc.Name+"/")
			want.VirtualHosts = append(want.VirtualHosts, h)
		}
		slices.SortFunc(want.GetVirtualHosts(), func(a, b *routev3.VirtualHost) int { return strings.Compare(a.GetName(), b.GetName()) })
		body, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
		fatalIf(t, err, "marshaling")
		inline, _ := envoy.Build(rc)
		if len(inline) != 1 || inline[0].Name != rc.Name || inline[0].TypeURL != envoy.RouteType || !bytes.Equal(inline[0].Body, body) {
			t.Errorf("route configuration %q: inline differs from the merged virtual hosts", rc.Name)
		}
		if again := routes.Inline(); again.Version != inline[0].Version || again.Version == routes.Base.Version {
			t.Errorf("route configuration %q: versions %s inline, %s merged, %s of the base", rc.Name, inline[0].Version, again.Version, routes.Base.Version)
		}
	}
}

// TestVirtualHostResources checks what Envoy requires of VHDS resources. Envoy accepts
// those that break one of these rules, and ignores them silently.
func TestVirtualHostResources(t *testing.T) {
	t.Parallel()
	for _, rc := range allRouteConfigurations(t) {
		if want := !strings.Contains(rc.Name, "/"); envoy.SupportsVHDS(rc) != want {
			t.Errorf("route configuration %q: supports VHDS: %v", rc.Name, !want)
		}
		routes, _ := envoy.BuildVHDSRoutes(rc)
		base := decodeAs[*routev3.RouteConfiguration](t, routes.Base)
		source := base.GetVhds().GetConfigSource()
		if len(base.GetVirtualHosts()) > 0 || source.GetAds() == nil || !proto.Equal(source.GetInitialFetchTimeout(), durationpb.New(0)) {
			t.Errorf("route configuration %q: the base is %v", rc.Name, base)
		}
		names, domains := map[string]bool{}, map[string]string{}
		for _, r := range routes.VirtualHosts {
			h := decodeAs[*routev3.VirtualHost](t, r)
			rest, ok := strings.CutPrefix(r.Name, rc.Name+"/")
			if !ok || rest == "" || strings.Contains(rest, "/") || h.GetName() != r.Name || r.TypeURL != envoy.VirtualHostType {
				t.Errorf("route configuration %q: resource %q is the virtual host %q", rc.Name, r.Name, h.GetName())
			}
			if names[r.Name] {
				t.Errorf("route configuration %q: virtual host %q is there twice", rc.Name, r.Name)
			}
			names[r.Name] = true
			for _, d := range h.GetDomains() {
				if other, taken := domains[strings.ToLower(d)]; taken {
					t.Errorf("route configuration %q: domain %q is of %q and of %q", rc.Name, d, other, r.Name)
				}
				domains[strings.ToLower(d)] = r.Name
			}
		}
	}
}

// TestResourcesBuiltOneByOne builds each resource alone, as after a change of one of them.
func TestResourcesBuiltOneByOne(t *testing.T) {
	t.Parallel()
	for _, rc := range allRouteConfigurations(t) {
		routes, _ := envoy.BuildVHDSRoutes(rc)
		list := []envoy.Resource{envoy.BuildVHDSBase(rc.Name, rc.AllPorts)}
		for _, h := range rc.VirtualHosts {
			r, _ := envoy.BuildVirtualHost(rc.Name, h)
			list = append(list, r)
		}
		if rc.CatchAll != nil {
			list = append(list, envoy.BuildCatchAll(rc.Name, *rc.CatchAll))
		}
		for i, want := range append([]envoy.Resource{routes.Base}, routes.VirtualHosts...) {
			if list[i].Version != want.Version || list[i].Name != want.Name {
				t.Errorf("route configuration %q: %q differs if it is built alone", rc.Name, want.Name)
			}
		}
	}
}

func TestSupportsVHDS(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		rc   *view.RouteConfiguration
		want bool
	}{
		"port":          {&view.RouteConfiguration{Name: "8080", VirtualHosts: []*view.VirtualHost{{Name: "a:8080"}}}, true},
		"socket":        {&view.RouteConfiguration{Name: "unix:///run/x", VirtualHosts: []*view.VirtualHost{{Name: "a:80"}}}, false},
		"slash_in_host": {&view.RouteConfiguration{Name: "8080", VirtualHosts: []*view.VirtualHost{{Name: "a:8080"}, {Name: "b/c:8080"}}}, false},
		"no_name":       {&view.RouteConfiguration{}, false},
	} {
		if got := envoy.SupportsVHDS(c.rc); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
