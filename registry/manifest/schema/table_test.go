package schema

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/internal/envoytest"
)

var update = flag.Bool("update", false, "write table.jsonl from the pinned istio.io/api")

// TestTableIsFresh makes the table anew from the definitions that the pinned
// istio.io/api ships, and compares. With -update it writes it.
func TestTableIsFresh(t *testing.T) {
	t.Parallel()
	module, dir := apiModule(t)
	crds, err := os.ReadFile(filepath.Join(dir, "kubernetes", "customresourcedefinitions.gen.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	fresh := generate(t, module, crds)
	if *update {
		if err := os.WriteFile("table.jsonl", fresh, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(fresh, table) {
		t.Errorf("table.jsonl is not what %s ships; run go test ./registry/manifest/schema -run Table -update", module)
	}
}

// TestNoSchemaHasADefault: nobody sets defaults here, so a null whose field has one would be a
// value of the wrong type.
func TestNoSchemaHasADefault(t *testing.T) {
	t.Parallel()
	set, err := New()
	if err != nil {
		t.Fatal(err)
	}
	nullable := 0
	seen := map[*Schema]bool{}
	var look func(s *Schema, path string)
	look = func(s *Schema, path string) {
		if s.Default != nil {
			t.Errorf("%s has the default %v: set it where a null stands in its place (Prune)", path, s.Default)
		}
		if s.Nullable {
			nullable++
		}
		if seen[s] {
			return
		}
		seen[s] = true
		for name, p := range s.Properties {
			look(p, path+"."+name)
		}
		s.children(func(c *Schema) *Schema {
			look(c, path)
			return c
		})
	}
	for _, gvk := range set.Kinds() {
		look(set.Lookup(gvk), gvk.Kind)
	}
	if nullable < 50 {
		t.Errorf("only %d fields are nullable", nullable)
	}
}

func apiModule(t *testing.T) (module, dir string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Path}} {{.Version}}\n{{.Dir}}", "istio.io/api").Output()
	if err != nil {
		t.Fatalf("finding istio.io/api: %v", err)
	}
	module, dir, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	if dir == "" {
		envoytest.Missing(t, "istio.io/api is not in the module cache")
	}
	return module, dir
}

// crd is what the table takes from a definition.
type crd struct {
	Spec struct {
		Group string
		Names struct{ Kind string }
		// Versions are in the order of the file.
		Versions []struct {
			Name   string
			Schema struct {
				OpenAPIV3Schema map[string]any `yaml:"openAPIV3Schema"`
			}
		}
	}
}

func generate(t *testing.T, module string, crds []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	writeLine(t, &out, header{Comment: "Made by table_test.go; see NOTICE.", Module: module})
	var all []crd
	decoder := yaml.NewDecoder(bytes.NewReader(crds))
	for {
		var c crd
		if err := decoder.Decode(&c); err != nil {
			break
		}
		if c.Spec.Names.Kind != "" {
			all = append(all, c)
		}
	}
	g := &generator{count: map[string]int{}, names: map[string]string{}}
	var bodies []GVK
	var schemas []*Schema
	for _, c := range all {
		for _, v := range c.Spec.Versions {
			raw, err := json.Marshal(v.Schema.OpenAPIV3Schema)
			if err != nil {
				t.Fatal(err)
			}
			var s Schema
			if err := json.Unmarshal(raw, &s); err != nil {
				t.Fatal(err)
			}
			g.visit(t, &s)
			bodies = append(bodies, GVK{c.Spec.Group, v.Name, c.Spec.Names.Kind})
			schemas = append(schemas, &s)
		}
	}
	for i, s := range schemas {
		short := g.intern(t, &out, s)
		writeLine(t, &out, line{GVK: &bodies[i], Schema: short})
	}
	return out.Bytes()
}

func writeLine(t *testing.T, out *bytes.Buffer, v any) {
	t.Helper()
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
}

// generator writes parts that occur more than once only once.
type generator struct {
	count map[string]int
	names map[string]string // content → name of the part
}

// minPart is the size in bytes from which a part is worth a line.
const minPart = 100

func content(t *testing.T, s *Schema) string {
	t.Helper()
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// visit counts how often each part occurs; below a part that was seen before
// nothing is counted again.
func (g *generator) visit(t *testing.T, s *Schema) {
	t.Helper()
	key := content(t, s)
	g.count[key]++
	if g.count[key] > 1 {
		return
	}
	s.children(func(c *Schema) *Schema {
		g.visit(t, c)
		return c
	})
}

// intern returns s with each repeated part replaced by a reference, and writes
// those parts the first time.
func (g *generator) intern(t *testing.T, out *bytes.Buffer, s *Schema) *Schema {
	t.Helper()
	key := content(t, s)
	repeated := g.count[key] > 1 && len(key) >= minPart
	if name, ok := g.names[key]; ok && repeated {
		return &Schema{Ref: name}
	}
	// Decode anew so that the counted originals stay as they are.
	var clone Schema
	if err := json.Unmarshal([]byte(key), &clone); err != nil {
		t.Fatal(err)
	}
	// Properties are a map: intern them in a stable order.
	for _, name := range sortedKeys(clone.Properties) {
		clone.Properties[name] = g.intern(t, out, clone.Properties[name])
	}
	props := clone.Properties
	clone.Properties = nil
	clone.children(func(c *Schema) *Schema { return g.intern(t, out, c) })
	clone.Properties = props
	if !repeated {
		return &clone
	}
	name := "p" + strconv.Itoa(len(g.names)+1)
	g.names[key] = name
	writeLine(t, out, line{Def: name, Schema: &clone})
	return &Schema{Ref: name}
}

func sortedKeys(m map[string]*Schema) []string { return slices.Sorted(maps.Keys(m)) }
