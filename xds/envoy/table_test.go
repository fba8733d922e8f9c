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

// allTables are the route tables of all golden files, and of a bigger mesh.
func allTables(t *testing.T) []*view.RouteConfiguration {
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
			if table, ok := p.(*view.RouteConfiguration); ok {
				out = append(out, table)
			}
		}
	}
	if len(out) < 10 {
		t.Fatalf("only %d tables", len(out))
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

// TestWholeTableIsItsPieces puts the pieces together by decoding them, and
// expects the bytes of the table that is built whole.
func TestWholeTableIsItsPieces(t *testing.T) {
	t.Parallel()
	for _, table := range allTables(t) {
		pieces, _ := envoy.BuildTable(table)
		want := decodeAs[*routev3.RouteConfiguration](t, pieces.Shell)
		want.Vhds = nil
		for _, r := range pieces.Hosts {
			h := decodeAs[*routev3.VirtualHost](t, r)
			h.Name = strings.TrimPrefix(h.GetName(), table.Name+"/")
			want.VirtualHosts = append(want.VirtualHosts, h)
		}
		slices.SortFunc(want.GetVirtualHosts(), func(a, b *routev3.VirtualHost) int { return strings.Compare(a.GetName(), b.GetName()) })
		body, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
		fatalIf(t, err, "marshaling")
		whole, _ := envoy.Build(table)
		if len(whole) != 1 || whole[0].Name != table.Name || whole[0].TypeURL != envoy.RouteType || !bytes.Equal(whole[0].Body, body) {
			t.Errorf("table %q: the whole is not the sum of its pieces", table.Name)
		}
		if again := pieces.Whole(); again.Version != whole[0].Version || again.Version == pieces.Shell.Version {
			t.Errorf("table %q: versions %s of the whole, %s of the pieces, %s of the shell", table.Name, whole[0].Version, again.Version, pieces.Shell.Version)
		}
	}
}

// TestVirtualHostsAlone pins what Envoy demands of virtual hosts that travel by
// themselves: what breaks one of these rules is taken, and silently lost.
func TestVirtualHostsAlone(t *testing.T) {
	t.Parallel()
	for _, table := range allTables(t) {
		if want := !strings.Contains(table.Name, "/"); envoy.Splittable(table) != want {
			t.Errorf("table %q: splittable %v", table.Name, !want)
		}
		pieces, _ := envoy.BuildTable(table)
		shell := decodeAs[*routev3.RouteConfiguration](t, pieces.Shell)
		source := shell.GetVhds().GetConfigSource()
		if len(shell.GetVirtualHosts()) > 0 || source.GetAds() == nil || !proto.Equal(source.GetInitialFetchTimeout(), durationpb.New(0)) {
			t.Errorf("table %q: the shell is %v", table.Name, shell)
		}
		names, domains := map[string]bool{}, map[string]string{}
		for _, r := range pieces.Hosts {
			h := decodeAs[*routev3.VirtualHost](t, r)
			rest, ok := strings.CutPrefix(r.Name, table.Name+"/")
			if !ok || rest == "" || strings.Contains(rest, "/") || h.GetName() != r.Name || r.TypeURL != envoy.VirtualHostType {
				t.Errorf("table %q: resource %q is the virtual host %q", table.Name, r.Name, h.GetName())
			}
			if names[r.Name] {
				t.Errorf("table %q: virtual host %q is there twice", table.Name, r.Name)
			}
			names[r.Name] = true
			for _, d := range h.GetDomains() {
				if other, taken := domains[strings.ToLower(d)]; taken {
					t.Errorf("table %q: domain %q is of %q and of %q", table.Name, d, other, r.Name)
				}
				domains[strings.ToLower(d)] = r.Name
			}
		}
	}
}

// TestPiecesAlone makes each piece by itself, as after a change of one of them.
func TestPiecesAlone(t *testing.T) {
	t.Parallel()
	for _, table := range allTables(t) {
		pieces, _ := envoy.BuildTable(table)
		list := []envoy.Resource{envoy.BuildShell(table.Name)}
		for _, h := range table.VirtualHosts {
			r, _ := envoy.BuildHost(table.Name, h)
			list = append(list, r)
		}
		if table.CatchAll != nil {
			list = append(list, envoy.BuildCatchAll(table.Name, *table.CatchAll))
		}
		for i, want := range append([]envoy.Resource{pieces.Shell}, pieces.Hosts...) {
			if list[i].Version != want.Version || list[i].Name != want.Name {
				t.Errorf("table %q: %q is another one alone", table.Name, want.Name)
			}
		}
	}
}

func TestSplittable(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		table *view.RouteConfiguration
		want  bool
	}{
		"port":          {&view.RouteConfiguration{Name: "8080", VirtualHosts: []*view.VirtualHost{{Name: "a:8080"}}}, true},
		"socket":        {&view.RouteConfiguration{Name: "unix:///run/x", VirtualHosts: []*view.VirtualHost{{Name: "a:80"}}}, false},
		"slash_in_host": {&view.RouteConfiguration{Name: "8080", VirtualHosts: []*view.VirtualHost{{Name: "a:8080"}, {Name: "b/c:8080"}}}, false},
		"no_name":       {&view.RouteConfiguration{}, false},
	} {
		if got := envoy.Splittable(c.table); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
