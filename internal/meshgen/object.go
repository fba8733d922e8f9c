package meshgen

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// object is a document, and what the product reads from it.
type object struct {
	kind        *Kind
	ns          string
	name        string
	labels      map[string]any
	annotations map[string]any
	created     string
	spec        map[string]any
	line        int // its first line

	message  proto.Message  // the specification as it was read
	fragment *mesh.Fragment // its contribution to the mesh
	key      mesh.Key
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// copy returns an object that may be changed.
func (o *object) copy() *object {
	next := *o
	next.spec, _ = deepCopy(o.spec).(map[string]any)
	next.labels, next.annotations = maps.Clone(o.labels), maps.Clone(o.annotations)
	return &next
}

func deepCopy(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			out[k] = deepCopy(x)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = deepCopy(x)
		}
		return out
	default:
		return v
	}
}

// document is the object as a person writes it. JSON is YAML.
func (o *object) document() []byte {
	doc := map[string]any{}
	if o.kind.APIVersion == "" { // the settings of the mesh have neither kind nor name
		doc = o.spec
	} else {
		meta := map[string]any{"namespace": o.ns, "name": o.name}
		if len(o.labels) > 0 {
			meta["labels"] = o.labels
		}
		if len(o.annotations) > 0 {
			meta["annotations"] = o.annotations
		}
		if o.created != "" {
			meta["creationTimestamp"] = o.created
		}
		doc["apiVersion"], doc["kind"], doc["metadata"], doc["spec"] = o.kind.APIVersion, string(o.kind.Name), meta, o.spec
	}
	// On one line, YAML's reader would look ahead in each map, which could be a key.
	text, err := json.MarshalIndent(doc, "", "")
	if err != nil {
		panic(err) // only values of JSON are in it
	}
	return append([]byte(strings.Repeat("#\n", o.line)), text...)
}

// path is that of the file with the object.
func (o *object) path() string { return string(o.kind.Name) + "-" + o.ns + "-" + o.name + ".yaml" }

// read decodes the document with the product. faults are the paths in the specification
// that it rejects; ok means that there are none.
func (o *object) read(source string) (faults [][]string, ok bool) {
	if o.kind.APIVersion == "" {
		config, found := manifest.DecodeMeshConfig(o.path(), o.document())
		if config == nil || manifest.HasErrors(found) {
			for _, f := range errorsOf(found) {
				faults = append(faults, tokens(f.Field))
			}
			return faults, false
		}
		o.message, o.key, o.fragment = config.Spec, config.Key, &mesh.Fragment{MeshConfig: config}
		return nil, true
	}
	file, found := manifest.Decode(manifest.Options{Source: source}, o.path(), o.document())
	x := file.Objects[0]
	if x.Valid && (len(x.NotInForce) == 0 || o.kind.rules == nil) {
		o.message, o.key, o.fragment = x.Spec, x.Meta.Key, x.Fragment()
		return nil, true
	}
	if found = errorsOf(found); len(found) == 0 {
		found = x.NotInForce
	}
	for _, f := range found {
		list := tokens(f.Field)
		faults = append(faults, list[min(1, len(list)):])
	}
	return faults, false
}

func errorsOf(faults []manifest.Fault) []manifest.Fault {
	return slices.DeleteFunc(faults, func(f manifest.Fault) bool { return f.Severity != manifest.Error })
}

// makeValid repairs an object until the product accepts it and it contributes to the mesh.
// It reports false if that fails.
func (w *writer) makeValid(o *object, source string) bool {
	for try := range 12 {
		faults, ok := o.read(source)
		if ok {
			if o.fragment == nil || len(o.fragment.ProxyConfigs) > 0 { // see withoutAgents
				return false
			}
			w.values.learn(o.kind, o.kind.message, o.spec)
			return true
		}
		slices.SortFunc(faults, func(a, b []string) int { return slices.Compare(b, a) }) // items of lists from the last
		faults = slices.CompactFunc(faults, slices.Equal)
		if len(faults) > 1 && len(faults[len(faults)-1]) == 0 { // of the whole, and perhaps for what is wrong in a part
			faults = faults[:len(faults)-1]
		}
		for _, f := range faults {
			w.repair(o.spec, f, try)
		}
	}
	return false
}
