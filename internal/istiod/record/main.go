// Command record asks real istiod what it sends to the proxies of the golden meshes, and
// writes it down. The package above compares the recordings with what Fairlead makes of the
// same meshes.
//
// istiod's own configuration generator runs inside this process, over the same files: no
// cluster, no network. The command is a module of its own, because Istio needs Kubernetes'
// libraries, and the product does not.
//
//	go run . [-out DIR] DIR      DIR holds one folder for each mesh
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"
	"istio.io/istio/pilot/pkg/config/kube/crd"
	"istio.io/istio/pilot/pkg/features"
	"istio.io/istio/pilot/pkg/model"
	"istio.io/istio/pilot/pkg/networking/core"
	"istio.io/istio/pilot/pkg/networking/util"
	labelutil "istio.io/istio/pilot/pkg/serviceregistry/util/label"
	"istio.io/istio/pilot/pkg/xds/endpoints"
	"istio.io/istio/pilot/test/xdstest"
	"istio.io/istio/pkg/config"
	"istio.io/istio/pkg/config/mesh"
	"istio.io/istio/pkg/config/mesh/meshwatcher"
	"istio.io/istio/pkg/log"
	"istio.io/istio/pkg/network"
	"istio.io/istio/pkg/test"
	"sigs.k8s.io/yaml"
)

// istioModule is whose version a recording names.
const istioModule = "istio.io/istio"

// tries is how often each proxy is asked for: some answers of istiod depend on the order of a
// map.
const tries = 10

// proxyRelease is what each proxy says of itself: the release that istiod's module is of, so
// that istiod uses no form for older ones.
const proxyRelease = "1.31.0"

func main() {
	out := flag.String("out", "", "folder to write into; the default is the one that is read")
	flag.Parse()
	if flag.NArg() != 1 {
		_, _ = fmt.Fprintln(os.Stderr, "usage: record [-out DIR] DIR")
		os.Exit(2)
	}
	if *out == "" {
		*out = flag.Arg(0)
	}
	if err := run(flag.Arg(0), *out); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(in, out string) error {
	features.EnableTLSOnSidecarIngress = true // else istiod takes no notice of a Sidecar's ingress.tls
	for _, s := range log.Scopes() {          // what is wrong ends the run
		s.SetOutputLevel(log.NoneLevel)
	}
	found, err := filepath.Glob(filepath.Join(in, "*", "mesh.yaml"))
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("%s has no folder with a mesh.yaml", in)
	}
	for _, path := range found {
		name := filepath.Base(filepath.Dir(path))
		if err := recordMesh(filepath.Dir(path), filepath.Join(out, name)); err != nil {
			return fmt.Errorf("mesh %s: %w", name, err)
		}
	}
	return nil
}

// proxy is one entry of proxies.yaml.
type proxy struct {
	Name           string            `json:"name"`
	Type           model.NodeType    `json:"type"` // sidecar, if it is empty
	Namespace      string            `json:"namespace"`
	ServiceAccount string            `json:"serviceAccount"`
	Labels         map[string]string `json:"labels"`
	Addresses      []string          `json:"addresses"`
	Interception   string            `json:"interception"`
	Locality       string            `json:"locality"`
	Network        string            `json:"network"`
}

// recording is what istiod sends to one proxy.
type recording struct {
	// Istiod is the version of Istio's module.
	Istiod string `json:"istiod"`
	// Input is a digest of the files that it was made of.
	Input     string            `json:"input"`
	Clusters  []json.RawMessage `json:"clusters"`
	Endpoints []json.RawMessage `json:"endpoints"`
	Listeners []json.RawMessage `json:"listeners"`
	Routes    []json.RawMessage `json:"routes"`
}

func recordMesh(in, out string) error {
	digest := sha256.New()
	read := func(name string) (string, error) {
		content, err := os.ReadFile(filepath.Join(in, name))
		if errors.Is(err, os.ErrNotExist) && name == "networks.yaml" {
			return "", nil // most meshes have none
		}
		if errors.Is(err, os.ErrNotExist) && name == "meshconfig.yaml" {
			err = nil
		}
		fmt.Fprintf(digest, "%s %d\n%s", name, len(content), content)
		return string(content), err
	}
	manifests, err1 := read("mesh.yaml")
	settings, err2 := read("meshconfig.yaml")
	list, err3 := read("proxies.yaml")
	networks, err4 := read("networks.yaml")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	var proxies []proxy
	if err := yaml.UnmarshalStrict([]byte(list), &proxies); err != nil {
		return fmt.Errorf("proxies.yaml: %w", err)
	}
	mc, err := mesh.ApplyMeshConfigDefaults(settings)
	if err != nil {
		return fmt.Errorf("meshconfig.yaml: %w", err)
	}
	of := input{mc: mc}
	if of.networks, err = mesh.ParseMeshNetworks(networks); err != nil {
		return fmt.Errorf("networks.yaml: %w", err)
	}
	new(core.ConfigGeneratorImpl).MeshConfigChanged(mc) // it keeps the access log of the mesh before
	if of.configs, err = objects(manifests); err != nil {
		return fmt.Errorf("mesh.yaml: %w", err)
	}
	target := filepath.Join(out, "istiod")
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	version, err := istioVersion()
	if err != nil {
		return err
	}
	for _, p := range proxies {
		var content []byte
		for try := range tries {
			r := &recording{Istiod: version, Input: hex.EncodeToString(digest.Sum(nil))}
			if err := r.ask(of, p); err != nil {
				return fmt.Errorf("proxy %s: %w", p.Name, err)
			}
			again, err := json.MarshalIndent(r, "", "") // a line for each value, so that diffs are short
			if err != nil {
				return err
			}
			if try > 0 && !bytes.Equal(content, again) {
				return fmt.Errorf("proxy %s: istiod does not always send the same; change the mesh so that it does. The first line that differs: %s", p.Name, firstDifference(content, again))
			}
			content = again
		}
		if err := os.WriteFile(filepath.Join(target, p.Name+".json"), append(content, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func firstDifference(a, b []byte) string {
	la, lb := strings.Split(string(a), "\n"), strings.Split(string(b), "\n")
	for i := range min(len(la), len(lb)) {
		if la[i] != lb[i] {
			return fmt.Sprintf("%d, once %s, once %s", i+1, strings.TrimSpace(la[i]), strings.TrimSpace(lb[i]))
		}
	}
	return "the end"
}

func istioVersion() (string, error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", errors.New("this binary does not know what it is made of: build it with modules")
	}
	for _, m := range info.Deps {
		if m.Path == istioModule {
			return m.Path + " " + m.Version, nil
		}
	}
	return "", fmt.Errorf("this binary is not made with %s", istioModule)
}

// objects decodes the manifests as istiod does. All are equally old: their order is that of
// their names.
func objects(manifests string) ([]config.Config, error) {
	configs, unknown, err := crd.ParseInputs(manifests)
	if err != nil {
		return nil, err
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("istiod does not know %d of the objects: the first is %s %s", len(unknown), unknown[0].Kind, unknown[0].Name)
	}
	for i := range configs {
		if configs[i].Namespace == "" {
			return nil, fmt.Errorf("%s %s has no namespace", configs[i].GroupVersionKind.Kind, configs[i].Name)
		}
		configs[i].Domain = "cluster.local"
		configs[i].CreationTimestamp = time.Unix(1_700_000_000, 0).UTC()
	}
	return configs, nil
}

// input is a mesh.
type input struct {
	configs  []config.Config
	mc       *meshconfig.MeshConfig
	networks *meshconfig.MeshNetworks
}

// networksWatcher remembers who wants to know of changes.
type networksWatcher struct {
	mesh.NetworksWatcher

	handlers []func()
}

// AddNetworksHandler implements mesh.NetworksWatcher.
func (w *networksWatcher) AddNetworksHandler(h func()) *mesh.WatcherHandlerRegistration {
	w.handlers = append(w.handlers, h)
	return w.NetworksWatcher.AddNetworksHandler(h)
}

// ask starts istiod's generator for one proxy.
func (r *recording) ask(in input, p proxy) error {
	return test.Wrap(func(t test.Failer) {
		networks := &networksWatcher{NetworksWatcher: meshwatcher.NewFixedNetworksWatcher(in.networks)}
		g := core.NewConfigGenTest(t, core.TestOptions{
			Configs: slices.Clone(in.configs), MeshConfig: proto.Clone(in.mc).(*meshconfig.MeshConfig), ClusterID: "Kubernetes",
			NetworksWatcher: networks,
		})
		for _, reload := range networks.handlers { // the first time, istiod leaves the gateways for DNS names out
			reload()
		}
		locality, labels := p.place()
		node := g.SetupProxy(&model.Proxy{
			Type: p.Type, ID: p.Name + "." + p.Namespace, ConfigNamespace: p.Namespace, IPAddresses: p.Addresses, Labels: labels,
			Locality: locality,
			Metadata: &model.NodeMetadata{
				IstioVersion: proxyRelease, Namespace: p.Namespace, ServiceAccount: p.ServiceAccount, Labels: p.Labels,
				ClusterID: "Kubernetes", Network: network.ID(p.Network), InterceptionMode: model.TrafficInterceptionMode(p.Interception), InstanceIPs: p.Addresses,
			},
		})
		push := g.PushContext()
		clusters := g.Clusters(node)
		listeners := g.Listeners(node)
		r.Clusters = encode(t, clusters)
		r.Listeners = encode(t, listeners)
		r.Routes = encode(t, g.RoutesFromListeners(node, listeners))
		for _, name := range xdstest.ExtractEdsClusterNames(clusters) {
			b := endpoints.NewEndpointBuilder(name, node, push)
			r.Endpoints = append(r.Endpoints, encode(t, []proto.Message{b.BuildClusterLoadAssignment(g.Env().EndpointIndex)})...)
		}
		for _, list := range [][]json.RawMessage{r.Clusters, r.Endpoints, r.Listeners, r.Routes} {
			slices.SortFunc(list, func(a, b json.RawMessage) int { return strings.Compare(nameOf(a), nameOf(b)) })
		}
	})
}

// place is where a proxy is, and its labels with those that say so: as istiod's discovery server
// sets them, which is not in this process.
func (p *proxy) place() (*corev3.Locality, map[string]string) {
	locality := util.ConvertLocality(p.Locality)
	region, inRegion := p.Labels[labelutil.LabelTopologyRegion]
	zone, inZone := p.Labels[labelutil.LabelTopologyZone]
	subzone, inSubzone := p.Labels[labelutil.LabelTopologySubzone]
	if inRegion || inZone || inSubzone {
		locality = &corev3.Locality{Region: region, Zone: zone, SubZone: subzone}
	}
	return locality, labelutil.AugmentLabels(p.Labels, "Kubernetes", util.LocalityToString(locality), "", network.ID(p.Network))
}

func nameOf(body json.RawMessage) string {
	var m struct {
		Name    string `json:"name"`
		Cluster string `json:"cluster_name"`
	}
	_ = json.Unmarshal(body, &m) // it is our own
	return m.Name + m.Cluster
}

// encode writes messages as JSON, sorted by key, and without what only the Istio build of
// Envoy understands.
func encode[M proto.Message](t test.Failer, list []M) []json.RawMessage {
	out := make([]json.RawMessage, 0, len(list))
	for _, m := range list {
		body, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		if err != nil {
			t.Fatalf("encoding %T: %v", m, err)
		}
		dec := json.NewDecoder(bytes.NewReader(body))
		dec.UseNumber()
		var node any
		if err := dec.Decode(&node); err != nil {
			t.Fatal(err)
		}
		if _, err := dec.Token(); !errors.Is(err, io.EOF) {
			t.Fatalf("encoding %T: more than one value", m)
		}
		body, err = json.Marshal(sorted("", nameOnly(node)))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, body)
	}
	return out
}

// nameOnly keeps of a filter of the Istio build its name.
func nameOnly(x any) any {
	switch x := x.(type) {
	case map[string]any:
		if config, ok := x["typed_config"].(map[string]any); ok {
			if kind, _ := config["@type"].(string); !strings.HasPrefix(kind, "type.googleapis.com/envoy.") {
				return map[string]any{"name": x["name"]}
			}
		}
		for k, v := range x {
			x[k] = nameOnly(v)
		}
	case []any:
		for i, v := range x {
			x[i] = nameOnly(v)
		}
	}
	return x
}

// sorted puts the elements of lists in order that istiod sends in any, because Envoy does not
// mind.
func sorted(field string, x any) any {
	switch x := x.(type) {
	case map[string]any:
		for k, v := range x {
			x[k] = sorted(k, v)
		}
	case []any:
		for i, v := range x {
			x[i] = sorted("", v)
		}
		switch field {
		case "domains", "prefix_ranges", "query_parameters":
			slices.SortStableFunc(x, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
	}
	return x
}
