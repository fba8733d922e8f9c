package tenantrules

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/manifest/schema"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/metakeys"
)

var update = flag.Bool("update", false, "write the table of the documentation anew")

var versioned = regexp.MustCompile(`^istio\.\w+\.v\d\w*\.`)

// named are all fields of all kinds that can have a name or a number: texts, bytes, whole numbers and
// keys of maps; and all annotations, labels and keys of registrations that have a meaning.
func named(t *testing.T) []string {
	t.Helper()
	set, err := schema.New()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[protoreflect.FullName]bool{}
	var out []string
	var walk func(protoreflect.MessageDescriptor)
	walk = func(d protoreflect.MessageDescriptor) {
		if seen[d.FullName()] || d.ParentFile().Package() == "google.protobuf" {
			return
		}
		seen[d.FullName()] = true
		for i := range d.Fields().Len() {
			f := d.Fields().Get(i)
			name := versioned.ReplaceAllString(string(d.FullName()), "") + "." + f.JSONName()
			of := f
			if f.IsMap() {
				out = append(out, name)
				of = f.MapValue()
			}
			switch of.Kind() {
			case protoreflect.MessageKind, protoreflect.GroupKind:
				walk(of.Message())
			case protoreflect.BoolKind, protoreflect.EnumKind, protoreflect.FloatKind, protoreflect.DoubleKind:
			default:
				out = append(out, name)
			}
		}
	}
	for _, gvk := range set.Kinds() {
		spec := manifest.NewSpec(mesh.Kind(gvk.Kind))
		if spec == nil {
			t.Fatalf("no message of kind %s", gvk.Kind)
		}
		walk(spec.ProtoReflect().Descriptor())
	}
	for _, k := range metakeys.All() {
		out = append(out, k.String())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// TestEachFieldHasARule: a field that Istio adds needs a row that says whether it can name something of
// others, and what holds for a tenant then.
func TestEachFieldHasARule(t *testing.T) {
	t.Parallel()
	fields, has := named(t), map[string]int{}
	if len(fields) < 200 {
		t.Fatalf("%d fields", len(fields))
	}
	for _, r := range Rows() {
		if r.Class == "" || r.Rule == "" || r.Rule != Plain && (r.Why == "" || (r.Try == "") == (r.Test == "")) || r.Rule == Setting && r.Flag == "" && r.Test == "" {
			t.Errorf("the row of %v lacks something: %+v", r.Fields, r)
		}
		for _, f := range r.Fields {
			prefix, all := strings.CutSuffix(f, "*")
			n := 0
			for _, name := range fields {
				if name == f || all && strings.HasPrefix(name, prefix) {
					n++
					has[name]++
					if r.Rule == Plain && has[name] > 1 {
						t.Errorf("%s is plain, and has another row", name)
					}
				}
			}
			if n == 0 {
				t.Errorf("there is no field %s", f)
			}
		}
	}
	for _, f := range fields {
		if has[f] == 0 {
			t.Errorf("the field %s has no row: can it name a host, an address, a port, a file, a credential, an identity, a URL or an expression of others?", f)
		}
	}
}

// TestTestsExist: rows that name a test name one that there is.
func TestTestsExist(t *testing.T) {
	t.Parallel()
	for _, r := range Rows() {
		if r.Test == "" {
			continue
		}
		dir, name, _ := strings.Cut(r.Test, " ")
		paths, err := filepath.Glob(filepath.Join("..", "..", dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(paths, func(path string) bool {
			b, err := os.ReadFile(path)
			return err == nil && strings.Contains(string(b), "func "+name+"(")
		}) {
			t.Errorf("%v: there is no test %s", r.Fields, r.Test)
		}
	}
}

// TestTableOfThePage compares the table of docs/identity.md with the rows; -update writes it.
func TestTableOfThePage(t *testing.T) {
	t.Parallel()
	const page, begin, end = "../../docs/identity.md", "<!-- fields that name something of others -->\n", "<!-- end -->\n"
	var b strings.Builder
	b.WriteString("\n| Names | Fields | Rule | Because |\n|---|---|---|---|\n")
	for _, r := range Rows() {
		if r.Rule == Plain {
			continue
		}
		rule := string(r.Rule)
		if r.Flag != "" {
			rule += " (`" + r.Flag + "`)"
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s |\n", r.Class, strings.Join(r.Fields, "`, `"), rule, r.Why)
	}
	b.WriteString("\n")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	table, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", page)
	}
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+b.String()+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table != b.String() {
		t.Errorf("%s has another table than the rows: run the test with -update", page)
	}
}
