package manifest_test

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// meshCorpus are MeshConfigs as people have them, in the style of Istio's chart and
// documentation, by the name of their file.
func meshCorpus(t *testing.T) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("testdata/mesh/*.yaml")
	if err != nil || len(paths) < 20 {
		t.Fatalf("%d files: %v", len(paths), err)
	}
	out := map[string][]byte{}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(path)] = content
	}
	return out
}

// TestMeshConfigsOfPeople compares what is said of each file, and what of it is in force, with a
// file beside it.
func TestMeshConfigsOfPeople(t *testing.T) {
	t.Parallel()
	for name, content := range meshCorpus(t) {
		settings, faults := manifest.ReadMeshConfig(name, content)
		var b strings.Builder
		for _, f := range faults {
			b.WriteString(f.String() + "\n")
		}
		if settings == nil {
			b.WriteString("kept out\n")
		} else {
			texts := manifest.EncodeMeshConfig(settings.Config)
			b.WriteString("in force: " + string(texts[len(texts)-1]))
		}
		path := filepath.Join("testdata", "mesh", strings.TrimSuffix(name, ".yaml")+".want")
		want, err := os.ReadFile(path)
		if string(want) == b.String() {
			continue
		}
		if f := flag.Lookup("update"); f == nil || f.Value.String() != "true" {
			t.Errorf("%s (%v): got\n%s\nwant\n%s\ngo test ./registry/manifest -run MeshConfigsOfPeople -update writes it", name, err, b.String(), want)
			continue
		}
		if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChartsMeshConfigLoads: what Istio's chart writes without anybody's doing is no error.
func TestChartsMeshConfigLoads(t *testing.T) {
	t.Parallel()
	for name, content := range meshCorpus(t) {
		settings, faults := manifest.ReadMeshConfig(name, content)
		if !strings.HasPrefix(name, "chart-") && !strings.HasPrefix(name, "istioctl-") {
			continue
		}
		if settings == nil {
			t.Errorf("%s is kept out: %v", name, faults)
		}
		if slices.Contains([]string{"chart-default.yaml", "chart-revision.yaml", "chart-preview.yaml", "chart-ambient.yaml", "chart-multicluster.yaml"}, name) && manifest.HasErrors(faults) {
			t.Errorf("%s has errors: %v", name, faults)
		}
	}
}

// TestSettingsAreWrittenAndReadBack: the state directory has the settings in force as a text.
func TestSettingsAreWrittenAndReadBack(t *testing.T) {
	t.Parallel()
	corpus := meshCorpus(t)
	for name, content := range corpus {
		was, _ := manifest.ReadMeshConfig(name, content)
		for _, later := range corpus {
			is, _ := manifest.ReadMeshConfig(name, later)
			if was == nil || is == nil {
				continue
			}
			checkReadBack(t, is.Over(was.Config))
		}
	}
	// Values that are zero and not the default.
	zero, faults := manifest.ReadMeshConfig("mesh.yaml", []byte("connectTimeout: 1s\nrootNamespace: \"\"\nproxyInboundListenPort: 0\ndefaultServiceExportTo: []\nlocalityLbSetting: {}\ntcpKeepalive: {}\n"))
	if zero == nil || manifest.HasErrors(faults) {
		t.Fatal(faults)
	}
	checkReadBack(t, zero.Config)
}

func checkReadBack(t *testing.T, want *mesh.MeshConfig) {
	t.Helper()
	texts := manifest.EncodeMeshConfig(want)
	for i, text := range texts {
		got, faults := manifest.ReadMeshConfig("mesh.yaml", text)
		if got == nil || manifest.HasErrors(faults) {
			t.Fatalf("%s: %v", text, faults)
		}
		spec := proto.CloneOf(want.Spec)
		if i < len(texts)-1 {
			spec.ExtensionProviders = nil
		}
		if !proto.Equal(got.Config.Spec, spec) || i == len(texts)-1 && got.Config.Hash != want.Hash {
			t.Fatalf("%s\ngot  %v\nwant %v", text, got.Config.Spec, spec)
		}
	}
}
