package analysis

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/fairlead/fairlead/registry/manifest"
)

// TestPolicyCases analyzes two meshes for each archive: mesh.yaml with has.yaml, of which every
// object has the finding that the archive is named after, and mesh.yaml with near.yaml, of which
// no object has it. The findings of the first are compared with the part named "want".
func TestPolicyCases(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/policies/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	codes := map[Code]bool{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		code, _, _ := strings.Cut(name, "-")
		codes[Code(code)] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			parts := map[string]string{}
			want := -1
			for i, f := range archive.Files {
				parts[f.Name] = string(f.Data)
				if f.Name == "want" {
					want = i
				}
			}
			if want < 0 || parts["has.yaml"] == "" || parts["near.yaml"] == "" {
				t.Fatal("an archive has the parts has.yaml, near.yaml and want")
			}
			var found []string
			has := findingsIn(t, parts, "has.yaml", Code(code))
			for key, lines := range has {
				if len(lines) == 0 {
					t.Errorf("%s has no finding of %s", key, code)
				}
			}
			for _, o := range objectsOf(t, parts, "has.yaml") {
				found = append(found, has[o.Meta.String()]...)
			}
			got := strings.Join(found, "")
			for key, lines := range findingsIn(t, parts, "near.yaml", Code(code)) {
				if len(lines) > 0 {
					t.Errorf("%s must not have the finding: %v", key, lines)
				}
			}
			if flag.Lookup("update").Value.String() == "true" {
				archive.Files[want].Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(archive), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(archive.Files[want].Data), got); diff != "" {
				t.Errorf("-want +got; run go test -update if it should:\n%s", diff)
			}
		})
	}
	for _, a := range policyAnalyzers() {
		if !codes[a.code] {
			t.Errorf("%s is a finding about policies and has no case testdata/policies/%s-NAME.txtar", a.code, a.code)
		}
	}
}

func objectsOf(t *testing.T, parts map[string]string, name string) []*manifest.Object {
	t.Helper()
	decoded, faults := manifest.Decode(manifest.Options{}, name, []byte(parts[name]))
	if manifest.HasErrors(faults) {
		t.Errorf("the manifests of a case must be valid: %v", faults)
	}
	return decoded.Objects
}

// findingsIn are the lines about each object of a part, together with mesh.yaml, that have a code.
func findingsIn(t *testing.T, parts map[string]string, name string, code Code) map[string][]string {
	t.Helper()
	in := Input{Objects: append(objectsOf(t, parts, "mesh.yaml"), objectsOf(t, parts, name)...)}
	if text := parts["meshconfig.yaml"]; text != "" {
		config, faults := manifest.DecodeMeshConfig("meshconfig.yaml", []byte(text))
		if config == nil {
			t.Fatalf("the settings of a case must be valid: %v", faults)
		}
		in.MeshConfig = config
	}
	out := map[string][]string{}
	for _, o := range in.Objects {
		if o.Meta.Origin.Path == name {
			out[o.Meta.String()] = nil
		}
	}
	for _, d := range Analyze(in) {
		if key := d.Key.String(); d.Code == code && d.Origin.Path == name {
			out[key] = append(out[key], d.String()+"\n")
		}
	}
	return out
}
