package manifest_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/manifest/schema"
	"github.com/fairlead/fairlead/registry/mesh"
)

var update = flag.Bool("update", false, "write the expected messages")

// TestBad reads each bad document and compares every fault with the messages
// in the file beside it.
func TestBad(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) < 30 {
		t.Fatalf("found %d bad documents, %v; want at least 30", len(files), err)
	}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			file, faults := manifest.Decode(manifest.Options{}, name+".yaml", content)
			for _, o := range file.Objects {
				faults = append(faults, o.NotInForce...)
			}
			if !manifest.HasErrors(faults) {
				t.Error("no fault was found")
			}
			var got bytes.Buffer
			for _, f := range faults {
				got.WriteString(f.String() + "\n")
			}
			golden := strings.TrimSuffix(path, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("messages differ (-want +got); -update rewrites them:\n%s", diff)
			}
		})
	}
}

func TestGood(t *testing.T) {
	t.Parallel()
	for name, count := range map[string]int{"shop": 9, "policy": 6} {
		file := decodeFile(t, "testdata/good/"+name+".yaml")
		if len(file.Objects) != count || file.Unparsable {
			t.Errorf("%s: read %d objects, unparsable %v; want %d", name, len(file.Objects), file.Unparsable, count)
		}
		for _, o := range file.Objects {
			if !o.Valid || o.Spec == nil || o.Meta.Hash.IsZero() {
				t.Errorf("%s: %s is not valid: %v", name, o.Meta.Key, o.Faults)
			}
		}
	}
}

func decodeFile(t *testing.T, path string) *manifest.File {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, _ := manifest.Decode(manifest.Options{Source: "files"}, path, content)
	return file
}

// TestEveryKind holds that each kind and version of the schema table can be
// read as a whole object, so that an upgrade of istio.io/api cannot add one
// that is forgotten here.
func TestEveryKind(t *testing.T) {
	t.Parallel()
	set, err := schema.New()
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Kinds()) < 15 {
		t.Errorf("the table has %d kinds", len(set.Kinds()))
	}
	for _, gvk := range set.Kinds() {
		text := "apiVersion: " + gvk.APIVersion() + "\nkind: " + gvk.Kind + "\nmetadata: {name: a}\nspec: {bogus: 1}\n"
		_, faults := manifest.Decode(manifest.Options{}, "a.yaml", []byte(text))
		found := slices.ContainsFunc(faults, func(f manifest.Fault) bool {
			return f.Code == manifest.CodeUnknownField && f.Field == "spec.bogus"
		})
		if !found {
			t.Errorf("%v: the unknown field was not found: %v", gvk, faults)
		}
	}
}

func TestNamespaces(t *testing.T) {
	t.Parallel()
	const text = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: a}\nspec: {address: 10.0.0.1}\n"
	file, faults := manifest.Decode(manifest.Options{Namespace: "shop", Namespaces: []string{"shop"}}, "a.yaml", []byte(text))
	if len(faults) != 0 || file.Objects[0].Meta.Namespace != "shop" {
		t.Errorf("got namespace %q, faults %v; want shop and none", file.Objects[0].Meta.Namespace, faults)
	}
	other := strings.Replace(text, "name: a", "name: a, namespace: bank", 1)
	file, faults = manifest.Decode(manifest.Options{Namespaces: []string{"shop"}}, "a.yaml", []byte(other))
	if len(faults) != 1 || faults[0].Code != manifest.CodeNamespace || faults[0].Origin.Line != 3 || file.Objects[0].Valid {
		t.Errorf("got %v; want the namespace refused in line 3", faults)
	}
}

// TestHash holds that where and how an object is written does not change its
// hash, and that what it says does.
func TestHash(t *testing.T) {
	t.Parallel()
	hash := func(text string) mesh.Hash {
		file, faults := manifest.Decode(manifest.Options{}, "a.yaml", []byte(text))
		if len(faults) != 0 {
			t.Fatal(faults)
		}
		return file.Objects[0].Meta.Hash
	}
	const text = `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: a, labels: {b: c}}
spec: {address: 10.0.0.1, weight: 5, ports: {a: 1, b: 2}}
`
	same := "# a comment\n" + strings.NewReplacer("v1", "v1beta1", "weight: 5, ports: {a: 1, b: 2}", "ports: {b: 2, a: 1.0}, weight: 5.0").Replace(text)
	if hash(text) != hash(same) {
		t.Error("the same object, written otherwise, has another hash")
	}
	for _, change := range [][2]string{{"name: a", "name: b"}, {"b: c", "b: d"}, {"weight: 5", "weight: 6"}, {"labels", "annotations"}} {
		if hash(text) == hash(strings.Replace(text, change[0], change[1], 1)) {
			t.Errorf("changing %q to %q leaves the hash as it was", change[0], change[1])
		}
	}
}

func TestOrigin(t *testing.T) {
	t.Parallel()
	file := decodeFile(t, "testdata/good/shop.yaml")
	vs := file.Objects[2]
	for field, want := range map[string]string{
		"spec.http[1].route[1].weight":      "testdata/good/shop.yaml:40:15",
		"spec.http[1].route[1].destination": "testdata/good/shop.yaml:39:20",
		"spec.http[1].route[7].weight":      "testdata/good/shop.yaml:37:5",
		"":                                  "testdata/good/shop.yaml:24:1",
	} {
		if got := vs.Origin(field).String(); got != want {
			t.Errorf("%q is at %s; want %s", field, got, want)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := range 12 {
		name := string(rune('a' + i))
		before := "a0"
		if i > 0 {
			before = string(rune('a'+i-1)) + "1"
		}
		bomb.WriteString(name + "1: &" + name + "1 [" + strings.Repeat("*"+before+",", 9) + "*" + before + "]\n")
	}
	for name, text := range map[string]string{
		"alias_bomb": bomb.String(),
		"depth":      "a: " + strings.Repeat("[", 200) + strings.Repeat("]", 200),
		"size":       strings.Repeat("# padding\n", manifest.MaxFileSize/10+1),
	} {
		_, faults := manifest.Decode(manifest.Options{}, name, []byte(text))
		if !slices.ContainsFunc(faults, func(f manifest.Fault) bool { return f.Code == manifest.CodeLimit }) {
			t.Errorf("%s: no limit was reported: %v", name, faults)
		}
	}
}

// FuzzDecode holds that no text makes the reader panic, that every fault has a
// place in the file, and that an object is valid or has an error, not both.
func FuzzDecode(f *testing.F) {
	for _, pattern := range []string{"testdata/bad/*.yaml", "testdata/good/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, path := range files {
			content, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(content)
		}
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		file, faults := manifest.Decode(manifest.Options{}, "f.yaml", content)
		lines := bytes.Count(content, []byte("\n")) + bytes.Count(content, []byte("\r")) + 1
		// YAML has more line breaks than most.
		lines += bytes.Count(content, []byte("\u0085")) + bytes.Count(content, []byte("\u2028")) + bytes.Count(content, []byte("\u2029"))
		for _, fault := range faults {
			if fault.Origin == nil || fault.Origin.Line > lines || fault.Message == "" || fault.Code == "" {
				t.Errorf("bad fault %+v in %d lines", fault, lines)
			}
		}
		for _, o := range file.Objects {
			if o.Valid == manifest.HasErrors(o.Faults) || o.Valid != (o.Spec != nil) {
				t.Errorf("%s is valid %v with spec %v and faults %v", o.Meta.Key, o.Valid, o.Spec != nil, o.Faults)
			}
			o.Fragment()
		}
		manifest.DecodeMeshConfig("m.yaml", content)
	})
}
