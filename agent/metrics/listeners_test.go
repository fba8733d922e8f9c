package metrics

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"gopkg.in/yaml.v3"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/manifest"
	registrymesh "github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// listenersOf are those of the proxies of a mesh that is compared with istiod, by proxy and minor
// release of Envoy. Metrics are on.
func listenersOf(t *testing.T, dir string) map[string][][]byte {
	t.Helper()
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return text
	}
	settings := manifest.DefaultMeshConfig()
	if text := read("meshconfig.yaml"); len(text) > 0 {
		decoded, faults := manifest.DecodeMeshConfig("meshconfig.yaml", text)
		if decoded == nil {
			t.Fatal(faults)
		}
		settings = decoded
	}
	settings.Spec.DefaultProviders = &meshconfig.MeshConfig_DefaultProviders{Metrics: []string{"prometheus"}}
	file, _ := manifest.Decode(manifest.Options{}, "mesh.yaml", read("mesh.yaml"))
	f := &registrymesh.Fragment{Source: "test"}
	for _, o := range file.Objects {
		if part := o.Fragment(); part != nil {
			f.Append(part)
		}
	}
	s := registrymesh.NewSnapshot(nil, settings, []*registrymesh.Fragment{f.Sorted()})
	var proxies []struct {
		Namespace      string            `yaml:"namespace"`
		ServiceAccount string            `yaml:"serviceAccount"`
		Labels         map[string]string `yaml:"labels"`
		Addresses      []string          `yaml:"addresses"`
		Interception   string            `yaml:"interception"`
	}
	if err := yaml.Unmarshal(read("proxies.yaml"), &proxies); err != nil {
		t.Fatal(err)
	}
	out := map[string][][]byte{}
	for _, p := range proxies {
		for _, minor := range []uint32{36, 38, 40} {
			v := view.Build(s, view.Proxy{
				ID: "sidecar~" + p.Addresses[0] + "~vm." + p.Namespace + "~" + p.Namespace + ".svc.cluster.local", Type: view.Sidecar,
				ServiceAccount: registrymesh.ServiceAccount{Namespace: p.Namespace, Name: p.ServiceAccount}, Addresses: p.Addresses, Labels: p.Labels,
				Interception: view.Interception(p.Interception), AccessLogService: true, EnvoyVersion: view.Version{Major: 1, Minor: minor},
			})
			key := fmt.Sprintf("%s, 1.%d", p.Addresses[0], minor)
			for part := range v.Parts() {
				resources, _ := envoy.Build(part)
				for _, r := range resources {
					if r.TypeURL == envoy.ListenerType {
						out[key] = append(out[key], r.Body)
					}
				}
			}
		}
	}
	return out
}

// textOf finds the managers of a listener, and who reports them, by the text of their filters.
func textOf(t *testing.T, body []byte, note func(m manager, side reporter)) {
	t.Helper()
	l := &listenerv3.Listener{}
	if err := proto.Unmarshal(body, l); err != nil {
		t.Fatal(err)
	}
	for _, c := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
		for _, f := range c.GetFilters() {
			j, err := protojson.Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			text := strings.NewReplacer(`" :`, `":`, `": `, `":`).Replace(string(j))
			_, rest, ok := strings.Cut(text, `"statPrefix":"`)
			isTCP := strings.Contains(text, "TcpProxy")
			if !ok || !isTCP && !strings.Contains(text, "HttpConnectionManager") {
				continue
			}
			prefix, _, _ := strings.Cut(rest, `"`)
			side := reporter("")
			if strings.Contains(text, "als-grpc") || strings.Contains(text, `"name":"requests_total"`) {
				side = source
				if strings.Contains(text, `"istio/destination"`) || strings.Contains(text, `"valueFormat":"destination"`) {
					side = destination
				}
			}
			note(manager{isTCP, strings.TrimSuffix(strings.ReplaceAll(prefix, ":", "_"), ";")}, side)
		}
	}
}

// TestListenersSayWhatIsReported: of each connection manager and TCP proxy that the control plane
// makes of the meshes that are compared with istiod, and for each form of metrics, it is known who
// reports its requests or connections, and that nobody does.
func TestListenersSayWhatIsReported(t *testing.T) {
	t.Parallel()
	dirs, err := filepath.Glob("../../internal/istiod/testdata/*/mesh.yaml")
	if err != nil || len(dirs) == 0 {
		t.Fatal("there are no meshes", err)
	}
	found := map[string]int{}
	for _, path := range dirs {
		for proxy, bodies := range listenersOf(t, filepath.Dir(path)) {
			got, err := reportingOf(bodies)
			if err != nil {
				t.Fatalf("%s, %s: %v", path, proxy, err)
			}
			want, ambiguous := map[manager]reporter{}, map[manager]bool{}
			for _, body := range bodies {
				textOf(t, body, func(m manager, side reporter) {
					if before, ok := want[m]; ok && before != side {
						ambiguous[m] = true
					}
					want[m] = side
				})
			}
			for m := range ambiguous {
				want[m] = ""
			}
			for m, side := range want {
				if got.side[m] != side {
					t.Errorf("%s, %s: %+v is reported by %q, want %q", path, proxy, m, got.side[m], side)
				}
				found[fmt.Sprint(side, " ", m.tcp)]++
			}
			if len(got.side) != len(want) {
				t.Errorf("%s, %s: %d managers, want %d", path, proxy, len(got.side), len(want))
			}
			if byLog := strings.HasSuffix(proxy, "1.36"); got.byLog[source] && !byLog || got.byLog[destination] && !byLog {
				t.Errorf("%s, %s: its requests come by access log: %v", path, proxy, got.byLog)
			}
		}
	}
	for _, kind := range []string{"source false", "source true", "destination false", "destination true"} {
		if found[kind] == 0 {
			t.Errorf("no listener has %s (side, is TCP): %v", kind, found)
		}
	}
}

// TestLogsOfOthersAreNotOurs: a log of the same name at another service does not count.
func TestLogsOfOthersAreNotOurs(t *testing.T) {
	t.Parallel()
	if LogCluster != bootstrap.ALSCluster {
		t.Errorf("the cluster is %q, in the bootstrap %q", LogCluster, bootstrap.ALSCluster)
	}
	r := &rig{}
	text := "listeners:\n" + tcpListener("tcp", 1, "a", source, "") + httpListener("http", 2, "direct_response: {status: 200}", httpLog(36, 1, destination), "")
	r.knows(t, text)
	own, err := reportingOf(r.listeners.Bodies())
	if err != nil || own.side[manager{true, "tcp"}] != source || own.side[manager{false, "http"}] != destination || !own.byLog[destination] {
		t.Fatalf("%+v, %v", own, err)
	}
	r.knows(t, strings.ReplaceAll(text, "als-grpc", "another"))
	if others, err := reportingOf(r.listeners.Bodies()); err != nil || others.anything() {
		t.Errorf("%+v, %v", others, err)
	}
	if _, err := reportingOf([][]byte{[]byte("no listener")}); err == nil {
		t.Error("bytes that are no listener have no error")
	}
}
