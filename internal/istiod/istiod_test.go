package istiod_test

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/mod/modfile"
	"google.golang.org/protobuf/encoding/protojson"
	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/internal/istiod"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// acceptedFile lists the accepted differences, with their reasons.
const acceptedFile = "testdata/differences.yaml"

// golden is one proxy of a golden mesh, on both sides.
type golden struct {
	name         string // MESH/PROXY
	ours, istiod istiod.Config
	raw          istiod.Config // ours, not normalized
}

// proxyFile is one entry of proxies.yaml. The recorder reads the same.
type proxyFile struct {
	Name           string            `yaml:"name"`
	Type           view.ProxyType    `yaml:"type"` // sidecar, if it is empty
	Namespace      string            `yaml:"namespace"`
	ServiceAccount string            `yaml:"serviceAccount"`
	Labels         map[string]string `yaml:"labels"`
	Addresses      []string          `yaml:"addresses"`
	Interception   string            `yaml:"interception"`
	Locality       string            `yaml:"locality"`
	Network        string            `yaml:"network"`
}

func (p *proxyFile) proxy() view.Proxy {
	kind := cmp.Or(p.Type, view.Sidecar)
	return view.Proxy{
		ID:             fmt.Sprintf("%s~%s~%s.%s~%s.svc.cluster.local", kind, p.Addresses[0], p.Name, p.Namespace, p.Namespace),
		Type:           kind,
		ServiceAccount: mesh.ServiceAccount{Namespace: p.Namespace, Name: p.ServiceAccount},
		Addresses:      p.Addresses,
		Labels:         p.Labels,
		Interception:   view.Interception(p.Interception),
		Locality:       cmp.Or(view.LocalityFromLabels(mesh.Locality{}, p.Labels), mesh.ParseLocality(p.Locality)),
		Network:        p.Network,
		FileSecrets:    true,
		EnvoyVersion:   view.Version{Major: 1, Minor: 40},
	}
}

// goldens reads the golden meshes, and makes our side. Both are normalized. They are made once
// for all tests, which copy what they change.
var goldens = sync.OnceValues(func() ([]golden, error) {
	meshes, err := filepath.Glob("testdata/*/mesh.yaml")
	if err != nil {
		return nil, err
	}
	var out []golden
	for _, path := range meshes {
		all, err := goldensOf(filepath.Dir(path))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Dir(path), err)
		}
		out = append(out, all...)
	}
	return out, nil
})

func goldensOf(dir string) ([]golden, error) {
	digest := sha256.New()
	read := func(name string) ([]byte, error) {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) && name == "networks.yaml" {
			return nil, nil // most meshes have none
		}
		if errors.Is(err, fs.ErrNotExist) && name == "meshconfig.yaml" {
			err = nil
		}
		_, _ = fmt.Fprintf(digest, "%s %d\n%s", name, len(content), content)
		return content, err
	}
	manifests, err1 := read("mesh.yaml")
	settings, err2 := read("meshconfig.yaml")
	list, err3 := read("proxies.yaml")
	networks, err4 := read("networks.yaml")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	var proxies []proxyFile
	if err := yaml.Unmarshal(list, &proxies); err != nil {
		return nil, err
	}
	snapshot, err := snapshotOf(manifests, settings, networks)
	if err != nil {
		return nil, err
	}
	input := hex.EncodeToString(digest.Sum(nil))
	if files, err := filepath.Glob(filepath.Join(dir, "istiod", "*")); err != nil || len(files) != len(proxies) {
		return nil, fmt.Errorf("%d recordings of %d proxies (%w): run make istiod-record", len(files), len(proxies), err)
	}
	var out []golden
	for _, p := range proxies {
		g := golden{name: filepath.Base(dir) + "/" + p.Name}
		if g.istiod, err = recorded(filepath.Join(dir, "istiod", p.Name+".json"), input); err != nil {
			return nil, err
		}
		if g.ours, err = rendered(snapshot, p.proxy()); err != nil {
			return nil, err
		}
		g.raw = istiod.Config{}
		for kind, all := range g.ours {
			g.raw[kind], _ = cloneJSON(all).(map[string]any)
		}
		istiod.Normalize(g.istiod)
		istiod.Normalize(g.ours)
		out = append(out, g)
	}
	return out, nil
}

// snapshotOf reads manifests as fairlead render does. Nothing may be left out.
func snapshotOf(manifests, settings, networks []byte) (*mesh.Snapshot, error) {
	mc := manifest.DefaultMeshConfig()
	var faults []manifest.Fault
	if len(settings) > 0 {
		mc, faults = manifest.DecodeMeshConfig("meshconfig.yaml", settings)
	}
	file, more := manifest.Decode(manifest.Options{}, "mesh.yaml", manifests)
	faults = append(faults, more...)
	f := &mesh.Fragment{Source: "golden"}
	if len(networks) > 0 {
		f.MeshNetworks, more = manifest.DecodeMeshNetworks("networks.yaml", networks)
		faults = append(faults, more...)
	}
	for _, o := range file.Objects {
		faults = append(faults, o.NotInForce...)
		if part := o.Fragment(); part != nil {
			f.Append(part)
		}
	}
	var errs []error
	for _, fault := range faults {
		if fault.Severity == manifest.Error {
			errs = append(errs, errors.New(fault.String()))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return mesh.Merge(mesh.Input{Fallback: mc, Fragments: []*mesh.Fragment{f.Sorted()}}), nil
}

// rendered is what fairlead render shows of a proxy.
func rendered(s *mesh.Snapshot, p view.Proxy) (istiod.Config, error) {
	kinds := map[string]string{
		envoy.ClusterType: istiod.Clusters, envoy.EndpointType: istiod.Endpoints,
		envoy.ListenerType: istiod.Listeners, envoy.RouteType: istiod.Routes,
	}
	out, extensions := istiod.Config{}, map[string]any{}
	for _, kind := range kinds {
		out[kind] = map[string]any{}
	}
	for part := range (view.Settings{}).NewIndex(s).Build(p).Parts() {
		resources, _ := envoy.Build(part)
		for _, r := range resources {
			m, err := envoy.Decode(r)
			if err != nil {
				return nil, err
			}
			body, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
			if err != nil {
				return nil, err
			}
			to := out[kinds[r.TypeURL]]
			if r.TypeURL == envoy.ExtensionType {
				to = extensions
			}
			if to[r.Name], err = decodeJSON(body); err != nil {
				return nil, err
			}
		}
	}
	return out, istiod.Inline(out, extensions)
}

// recorded is what istiod sends, as the recorder wrote it.
func recorded(path, input string) (istiod.Config, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is missing: run make istiod-record", path)
	}
	if err != nil {
		return nil, err
	}
	var file struct {
		Istiod, Input                          string
		Clusters, Endpoints, Listeners, Routes []json.RawMessage
	}
	if err := json.Unmarshal(content, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if file.Input != input {
		return nil, fmt.Errorf("%s was recorded for other manifests: run make istiod-record", path)
	}
	if file.Istiod == "" {
		return nil, fmt.Errorf("%s does not say which istiod it is of: run make istiod-record", path)
	}
	out := istiod.Config{}
	for kind, list := range map[string][]json.RawMessage{
		istiod.Clusters: file.Clusters, istiod.Endpoints: file.Endpoints, istiod.Listeners: file.Listeners, istiod.Routes: file.Routes,
	} {
		out[kind] = map[string]any{}
		for _, body := range list {
			v, err := decodeJSON(body)
			if err != nil {
				return nil, err
			}
			m, _ := v.(map[string]any)
			name, ok := m["name"].(string)
			if kind == istiod.Endpoints {
				name, ok = m["cluster_name"].(string)
			}
			if !ok || out[kind][name] != nil {
				return nil, fmt.Errorf("%s: %s has %q twice, or no name", path, kind, name)
			}
			out[kind][name] = v
		}
	}
	return out, nil
}

func decodeJSON(body []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var v any
	err := dec.Decode(&v)
	return v, err
}

func accepted(t *testing.T) *istiod.Acceptances {
	t.Helper()
	f, err := os.Open(acceptedFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	a, err := istiod.ReadAccepted(f)
	if err != nil {
		t.Fatalf("%s: %v", acceptedFile, err)
	}
	return a
}

// TestRecordingsAreOfOneIstiod: a recorder that is raised has to record anew.
func TestRecordingsAreOfOneIstiod(t *testing.T) {
	t.Parallel()
	const path = "record/go.mod"
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mod, err := modfile.Parse(path, content, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, r := range mod.Require {
		if r.Mod.Path == "istio.io/istio" {
			want = r.Mod.String()
		}
	}
	files, err := filepath.Glob("testdata/*/istiod/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, f := range files {
		content, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var r struct{ Istiod string }
		if err := json.Unmarshal(content, &r); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		if got := strings.Replace(r.Istiod, " ", "@", 1); got != want {
			t.Errorf("%s is of %s, and the recorder has %s: run make istiod-record", f, got, want)
		}
	}
}

// TestDifferencesFromIstiod compares what we make for the proxies of the golden meshes with
// what real istiod makes. Every difference has its reason in differences.yaml, and every
// reason a difference.
func TestDifferencesFromIstiod(t *testing.T) {
	t.Parallel()
	all, err := goldens()
	if err != nil {
		t.Fatal(err)
	}
	a := accepted(t)
	type seen struct {
		first istiod.Difference
		in    []string
	}
	found := map[string]*seen{}
	var order []string
	resources, values, differ := 0, 0, 0
	for _, g := range all {
		for _, list := range g.ours {
			resources += len(list)
			for _, r := range list {
				values += len(leavesOf(nil, r, nil, nil))
			}
		}
		for _, d := range istiod.Compare(g.ours, g.istiod) {
			if a.Accepts(g.name, d) {
				differ++
				continue
			}
			k := d.String()
			if found[k] == nil {
				found[k] = &seen{first: d}
				order = append(order, k)
			}
			found[k].in = append(found[k].in, g.name)
		}
	}
	t.Logf("%d proxies with %d resources and %d values; %d accepted differences", len(all), resources, values, differ)
	slices.Sort(order)
	const most = 40
	for _, k := range order[:min(len(order), most)] {
		d := found[k].first
		t.Errorf("in %s, %s:\n  ours:   %s\n  istiod: %s", strings.Join(found[k].in, ", "), istiod.JoinPath(d.Path), d.Ours, d.Istiod)
	}
	if len(order) > 0 {
		t.Errorf("%d differences from istiod are not in %s. Either the configuration is wrong: mend it. Or it is meant: list the place, both values and why", len(order), acceptedFile)
	}
	for _, k := range a.Unused() {
		t.Errorf("%s: %s: nothing differs like this any more: take it out", acceptedFile, k)
	}
}
