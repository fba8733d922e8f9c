package analysis_test

import (
	"crypto/sha256"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/fairlead/fairlead/registry/analysis"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

var update = flag.Bool("update", false, "write the golden parts anew")

// TestCases analyzes the manifests of each archive and compares the findings with
// the part named "want". The part "bound" has the namespaces that sources are bound to. A case whose name begins with "others" has other sources.
func TestCases(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in := analysis.Input{OtherSources: strings.HasPrefix(name, "others")}
			want := -1
			for i, f := range archive.Files {
				switch {
				case f.Name == "want":
					want = i
					continue
				case strings.HasPrefix(f.Name, "catalog"):
					in.Catalogs = append(in.Catalogs, catalog(f.Name, string(f.Data)))
					continue
				case f.Name == "bound":
					in.Bound = strings.Fields(string(f.Data))
					continue
				case f.Name == "meshconfig.yaml":
					config, faults := manifest.DecodeMeshConfig(f.Name, f.Data)
					if config == nil || manifest.HasErrors(faults) {
						t.Fatal(faults)
					}
					in.MeshConfig = config
					continue
				}
				decoded, faults := manifest.Decode(manifest.Options{}, f.Name, f.Data)
				if manifest.HasErrors(faults) != strings.Contains(name, "-broken-") {
					t.Errorf("the manifests of a case must be valid, unless its name says that they are broken: %v", faults)
				}
				in.Objects = append(in.Objects, decoded.Objects...)
			}
			if want < 0 {
				archive.Files = append(archive.Files, txtar.File{Name: "want"})
				want = len(archive.Files) - 1
			}
			got := findings(in)
			for range 8 { // order never comes from a map
				if again := findings(in); again != got {
					t.Fatalf("the same mesh, other words:\n%s%s", got, again)
				}
			}
			if *update {
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
}

// catalog is what a catalog has by lines: "NAME PORT" is a service, and "NAME
// ADDRESS KEY=VALUE" an instance of one.
func catalog(source, text string) *mesh.Fragment {
	f := &mesh.Fragment{Source: source}
	meta := func(kind mesh.Kind, name, content string) mesh.Meta {
		return mesh.Meta{
			Key:  mesh.Key{Kind: kind, Namespace: "default", Name: "consul/" + name},
			Hash: sha256.Sum256([]byte(content)), Origin: &mesh.Origin{Source: source, Path: "consul://" + source + "/service/" + name},
		}
	}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if port, err := strconv.ParseUint(words[1], 10, 16); err == nil {
			f.Services = append(f.Services, &mesh.Service{
				Meta: meta(mesh.KindServiceEntry, words[0], words[1]), Catalog: true, Hostname: mesh.Hostname(words[0] + ".service.consul"),
				Ports: []mesh.Port{{Name: "http", Number: uint32(port), Protocol: mesh.HTTP}}, Resolution: mesh.ResolutionStatic,
				Selector: map[string]string{mesh.LabelConsulService: words[0]},
			})
			continue
		}
		w := &mesh.Workload{Meta: meta(mesh.KindWorkloadEntry, source+"/"+words[1], words[1]), Address: words[1], ServiceAccount: words[0]}
		w.Labels = map[string]string{mesh.LabelConsulService: words[0]}
		for _, kv := range words[2:] {
			k, v, _ := strings.Cut(kv, "=")
			w.Labels[k] = v
		}
		f.Workloads = append(f.Workloads, w)
	}
	return f.Sorted()
}

func findings(in analysis.Input) string {
	var out strings.Builder
	for _, d := range analysis.Analyze(in) {
		out.WriteString(d.String() + "\n")
	}
	return out.String()
}
