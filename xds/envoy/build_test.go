package envoy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

var update = flag.Bool("update", false, "rewrite the golden sections")

// proxyFile is who the golden file is built for.
type proxyFile struct {
	Namespace, ServiceAccount, IP, Interception, Locality, Network, Type string
	Labels                                                               map[string]string
}

func (f proxyFile) proxy() view.Proxy {
	p := view.Proxy{
		ID:             "sidecar~" + f.IP + "~vm." + f.Namespace + "~" + f.Namespace + ".svc.cluster.local",
		Type:           view.Sidecar,
		ServiceAccount: mesh.ServiceAccount{Namespace: f.Namespace, Name: f.ServiceAccount},
		Addresses:      []string{f.IP},
		Labels:         f.Labels,
		Interception:   view.Interception(f.Interception),
		Locality:       mesh.ParseLocality(f.Locality),
		Network:        f.Network,
	}
	if f.Type == string(view.Router) {
		p.Type = view.Router
	}
	if p.Interception == "" {
		p.Interception = view.InterceptRedirect
	}
	return p
}

// sections are the parts of a golden file that are compared, with their types.
func sections() map[string]string {
	return map[string]string{
		"clusters.yaml": envoy.ClusterType, "endpoints.yaml": envoy.EndpointType,
		"extensions.yaml": envoy.ExtensionType, "listeners.yaml": envoy.ListenerType, "routes.yaml": envoy.RouteType,
	}
}

func file(a *txtar.Archive, name string) string {
	for _, f := range a.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

// serverSettings are the flags of the server, settings.yaml of a case.
func serverSettings(tb testing.TB, a *txtar.Archive) view.Settings {
	tb.Helper()
	var flags struct {
		QUICListeners bool `yaml:"quic-listeners"`
	}
	dec := yaml.NewDecoder(strings.NewReader(file(a, "settings.yaml")))
	dec.KnownFields(true)
	if err := dec.Decode(&flags); err != nil && !errors.Is(err, io.EOF) {
		tb.Fatalf("reading settings.yaml: %v", err)
	}
	return view.Settings{QUICListeners: flags.QUICListeners}
}

// buildAll makes every resource of a view.
func buildAll(v *view.View) []envoy.Resource {
	var out []envoy.Resource
	for p := range v.Parts() {
		rs, _ := envoy.Build(p)
		out = append(out, rs...)
	}
	slices.SortStableFunc(out, func(a, b envoy.Resource) int { return strings.Compare(a.TypeURL+a.Name, b.TypeURL+b.Name) })
	return out
}

// TestGolden compares what is built with testdata, and has a real Envoy check
// all of it.
func TestGolden(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/*.txtar")
	fatalIf(t, err, "listing testdata")
	if len(paths) == 0 {
		t.Fatal("testdata has no cases")
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			golden(t, path)
		})
	}
}

func golden(t *testing.T, path string) {
	t.Helper()
	a, err := txtar.ParseFile(path)
	fatalIf(t, err, "reading %q", path)
	var pf proxyFile
	fatalIf(t, yaml.Unmarshal([]byte(file(a, "proxy.yaml")), &pf), "reading proxy.yaml")
	s := snapshotOf(t, file(a, "mesh.yaml"), file(a, "meshconfig.yaml"))
	v := serverSettings(t, a).NewIndex(s).Build(pf.proxy())
	resources := buildAll(v)
	changed := false
	for i, f := range a.Files {
		want := string(f.Data)
		var got string
		switch typeURL := sections()[f.Name]; {
		case f.Name == "warnings.txt":
			var gotSb119 strings.Builder
			for _, w := range v.OwnWarnings() {
				gotSb119.WriteString(w.Key.String() + ": " + w.Message + "\n")
			}
			got += gotSb119.String()
		case typeURL == "":
			continue
		default:
			got = string(yamlOf(t, messages(t, resources, typeURL)))
		}
		if got == want {
			continue
		}
		if *update {
			a.Files[i].Data, changed = []byte(got), true
			continue
		}
		t.Errorf("%s differs (-want +got):\n%s", f.Name, cmp.Diff(want, got))
	}
	if changed {
		fatalIf(t, os.WriteFile(path, txtar.Format(a), 0o600), "writing %q", path)
	}
	check(t, resources)
}

func messages(tb testing.TB, resources []envoy.Resource, typeURL string) []proto.Message {
	tb.Helper()
	var out []proto.Message
	for _, r := range resources {
		if r.TypeURL == typeURL {
			m, err := envoy.Decode(r)
			fatalIf(tb, err, "decoding")
			out = append(out, m)
		}
	}
	return out
}

// check asks the messages' own rules, and then Envoy.
func check(t *testing.T, resources []envoy.Resource) {
	t.Helper()
	seen := map[string]bool{}
	for _, r := range resources {
		if key := r.TypeURL + r.Name; seen[key] {
			t.Errorf("%s %q is there twice", r.TypeURL, r.Name)
		} else {
			seen[key] = true
		}
		m, err := envoy.Decode(r)
		fatalIf(t, err, "decoding")
		if v, ok := m.(interface{ ValidateAll() error }); !ok {
			t.Errorf("%T has no rules", m)
		} else if err := v.ValidateAll(); err != nil {
			t.Errorf("%s %q: %v", r.TypeURL, r.Name, err)
		}
	}
	oneListenerAnAddress(t, resources)
	boot := filepath.Join(t.TempDir(), "bootstrap.json")
	fatalIf(t, os.WriteFile(boot, bootstrap(t, resources), 0o600), "writing %q", boot)
	for _, version := range envoytest.Versions() {
		out, err := exec.CommandContext(t.Context(), envoytest.BinaryVersion(t, version), "--mode", "validate", "-c", boot).CombinedOutput()
		if err != nil {
			t.Errorf("envoy %s refuses it: %v\n%s", version, err, out)
		}
	}
}

// oneListenerAnAddress looks for two listeners at one address, of which Envoy
// would take one or, worse, both.
func oneListenerAnAddress(t *testing.T, resources []envoy.Resource) {
	t.Helper()
	at := map[string]string{}
	for _, m := range messages(t, resources, envoy.ListenerType) {
		l, ok := m.(*listenerv3.Listener)
		if !ok {
			t.Fatalf("%T is no listener", m)
		}
		keys := []string{l.GetAddress().String()}
		for _, a := range l.GetAdditionalAddresses() {
			keys = append(keys, a.GetAddress().String())
		}
		for _, key := range keys {
			if other, ok := at[key]; ok {
				t.Errorf("listeners %q and %q have one address", other, l.GetName())
			}
			at[key] = l.GetName()
		}
	}
}

// bootstrap puts all resources into a file that Envoy reads at once: what would
// come by EDS and RDS stands where it is used.
func bootstrap(tb testing.TB, resources []envoy.Resource) []byte {
	tb.Helper()
	assignments := map[string]*endpointv3.ClusterLoadAssignment{}
	for _, m := range messages(tb, resources, envoy.EndpointType) {
		if e, ok := m.(*endpointv3.ClusterLoadAssignment); ok {
			assignments[e.GetClusterName()] = e
		}
	}
	tables := map[string]*routev3.RouteConfiguration{}
	for _, m := range messages(tb, resources, envoy.RouteType) {
		if rc, ok := m.(*routev3.RouteConfiguration); ok {
			tables[rc.GetName()] = rc
		}
	}
	extensions := map[string]*corev3.TypedExtensionConfig{}
	for _, m := range messages(tb, resources, envoy.ExtensionType) {
		if x, ok := m.(*corev3.TypedExtensionConfig); ok {
			extensions[x.GetName()] = x
		}
	}
	static := &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{{
		Name: "sds-grpc", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
	}}}
	for _, m := range messages(tb, resources, envoy.ClusterType) {
		c, ok := m.(*clusterv3.Cluster)
		if !ok {
			tb.Fatalf("%T is no cluster", m)
		}
		if c.GetType() == clusterv3.Cluster_EDS {
			e := assignments[c.GetName()]
			if e == nil {
				tb.Errorf("cluster %q has no endpoints resource", c.GetName())
			}
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
			c.EdsClusterConfig, c.LoadAssignment = nil, e
		}
		static.Clusters = append(static.Clusters, c)
	}
	for _, m := range messages(tb, resources, envoy.ListenerType) {
		l, ok := m.(*listenerv3.Listener)
		if !ok {
			tb.Fatalf("%T is no listener", m)
		}
		for _, c := range append(slices.Clone(l.GetFilterChains()), l.GetDefaultFilterChain()) {
			inline(tb, c, tables, extensions)
		}
		static.Listeners = append(static.Listeners, l)
	}
	body, err := protojson.Marshal(&bootstrapv3.Bootstrap{StaticResources: static})
	fatalIf(tb, err, "marshaling bootstrap")
	var node map[string]any
	fatalIf(tb, json.Unmarshal(body, &node), "reading own JSON")
	node["node"] = map[string]string{"id": "test", "cluster": "test"}
	body, err = json.Marshal(node)
	fatalIf(tb, err, "marshaling bootstrap")
	return body
}

// inline puts route configurations and extensions into a filter chain.
func inline(tb testing.TB, c *listenerv3.FilterChain, tables map[string]*routev3.RouteConfiguration, extensions map[string]*corev3.TypedExtensionConfig) {
	tb.Helper()
	for _, f := range c.GetFilters() {
		h := &hcmv3.HttpConnectionManager{}
		if !f.GetTypedConfig().MessageIs(h) {
			continue
		}
		fatalIf(tb, f.GetTypedConfig().UnmarshalTo(h), "reading a connection manager")
		if name := h.GetRds().GetRouteConfigName(); name != "" {
			if tables[name] == nil {
				tb.Errorf("route table %q is asked for and not there", name)
				continue
			}
			h.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: tables[name]}
		}
		for _, filter := range h.GetHttpFilters() {
			source := filter.GetConfigDiscovery()
			if source == nil {
				continue
			}
			x := extensions[filter.GetName()].GetTypedConfig()
			if !slices.Contains(source.GetTypeUrls(), x.GetTypeUrl()) || source.GetDefaultConfig() != nil || source.GetApplyDefaultConfigWithoutWarming() ||
				source.GetConfigSource().GetAds() == nil || source.GetConfigSource().GetInitialFetchTimeout() == nil || source.GetConfigSource().GetInitialFetchTimeout().AsDuration() != 0 {
				tb.Errorf("extension %q of type %q is asked for by %v", filter.GetName(), x.GetTypeUrl(), source)
			}
			filter.ConfigType = &hcmv3.HttpFilter_TypedConfig{TypedConfig: x}
		}
		packed, err := anypb.New(h)
		fatalIf(tb, err, "packing a connection manager")
		f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed}
	}
}

// TestSameBytes builds everything twice, from snapshots that were made apart.
func TestSameBytes(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/*.txtar")
	fatalIf(t, err, "listing testdata")
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		fatalIf(t, err, "reading %q", path)
		var pf proxyFile
		fatalIf(t, yaml.Unmarshal([]byte(file(a, "proxy.yaml")), &pf), "reading proxy.yaml")
		var views []*view.View
		for range 5 {
			views = append(views, view.Build(snapshotOf(t, file(a, "mesh.yaml"), file(a, "meshconfig.yaml")), pf.proxy()))
		}
		want := buildAll(views[0])
		for _, v := range views[1:] {
			if v.Hash() != views[0].Hash() {
				t.Errorf("%s: hashes differ", path)
			}
			for i, r := range buildAll(v) {
				if r.Version != want[i].Version || !bytes.Equal(r.Body, want[i].Body) {
					t.Errorf("%s: %s %q has other bytes", path, r.TypeURL, r.Name)
				}
			}
		}
	}
}

// TestRenderCases writes a dump for each case of a directory (FAIRLEAD_CASES)
// into another one (FAIRLEAD_DUMPS), for runners that compare with Istio.
func TestRenderCases(t *testing.T) {
	t.Parallel()
	from, to := os.Getenv("FAIRLEAD_CASES"), os.Getenv("FAIRLEAD_DUMPS")
	if from == "" || to == "" {
		t.Skip("FAIRLEAD_CASES and FAIRLEAD_DUMPS are not set")
	}
	entries, err := os.ReadDir(from)
	fatalIf(t, err, "reading %q", from)
	for _, e := range entries {
		manifests, err := os.ReadFile(filepath.Join(from, e.Name(), "mesh.yaml"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		fatalIf(t, err, "reading a case")
		about, err := os.ReadFile(filepath.Join(from, e.Name(), "case.json"))
		fatalIf(t, err, "reading a case")
		var c struct {
			Proxy      proxyFile       `json:"proxy"`
			MeshConfig json.RawMessage `json:"meshConfig"`
		}
		fatalIf(t, json.Unmarshal(about, &c), "reading case.json")
		v := view.Build(snapshotOf(t, string(manifests), string(c.MeshConfig)), c.Proxy.proxy())
		dump, err := envoy.ConfigDump(buildAll(v))
		fatalIf(t, err, "dumping")
		body, err := protojson.Marshal(dump)
		fatalIf(t, err, "marshaling")
		fatalIf(t, os.WriteFile(filepath.Join(to, e.Name()+".json"), body, 0o600), "writing")
	}
}
