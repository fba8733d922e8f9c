package envoy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// snapshotOf makes a snapshot of manifests, as users write them, and of a file
// with MeshConfig. A WorkloadEntry with the label test/health is unhealthy, or silent where the
// label says so.
func snapshotOf(tb testing.TB, manifests, settings string) *mesh.Snapshot {
	tb.Helper()
	mc := manifest.DefaultMeshConfig()
	if settings != "" && settings != "{}" {
		decoded, faults := manifest.DecodeMeshConfig("meshconfig.yaml", []byte(settings))
		refuse(tb, faults)
		mc = decoded
	}
	file, faults := manifest.Decode(manifest.Options{}, "mesh.yaml", []byte(manifests))
	refuse(tb, faults)
	f := &mesh.Fragment{Source: "test"}
	for _, o := range file.Objects {
		part := o.Fragment()
		if part == nil {
			tb.Fatalf("%s gives nothing to the mesh: %v", o.Meta.Key, o.NotInForce)
		}
		f.Append(part)
		for _, w := range part.Workloads {
			if says := w.Labels["test/health"]; says != "" {
				health := mesh.Unhealthy
				if says == mesh.Silent.String() {
					health = mesh.Silent
				}
				f.Health = append(f.Health, &mesh.HealthReport{
					ServiceAccount: mesh.ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount},
					Address:        w.Address, Health: health, Reason: "the test says so",
				})
			}
		}
	}
	return mesh.NewSnapshot(nil, mc, []*mesh.Fragment{f.Sorted()})
}

// refuse fails on faults that keep an object out, unless it is kept out in the
// way that a test is about.
func refuse(tb testing.TB, faults []manifest.Fault) {
	tb.Helper()
	for _, f := range faults {
		if f.Severity == manifest.Error && f.Code != manifest.CodeNotInForce {
			tb.Fatalf("reading manifests: %v", f)
		}
	}
}

// yamlOf writes messages as YAML, which people read and git compares.
func yamlOf(tb testing.TB, list []proto.Message) []byte {
	tb.Helper()
	var all []any
	for _, m := range list {
		body, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		fatalIf(tb, err, "marshaling %T", m)
		dec := json.NewDecoder(bytes.NewReader(body))
		dec.UseNumber()
		var node any
		fatalIf(tb, dec.Decode(&node), "reading own JSON")
		all = append(all, plain(node))
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	fatalIf(tb, enc.Encode(all), "writing YAML")
	return out.Bytes()
}

// plain makes numbers of JSON what YAML writes as people do.
func plain(x any) any {
	switch x := x.(type) {
	case json.Number:
		if n, err := x.Int64(); err == nil {
			return n
		}
		f, _ := x.Float64()
		return f
	case map[string]any:
		for k, v := range x {
			x[k] = plain(v)
		}
	case []any:
		for i, v := range x {
			x[i] = plain(v)
		}
	}
	return x
}

func fatalIf(tb testing.TB, err error, doing string, args ...any) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("%s: %v", fmt.Sprintf(doing, args...), err)
	}
}
