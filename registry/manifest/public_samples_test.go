package manifest_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry/manifest"
)

// publicSamplesInForce is the part of the objects in public samples, in percent, that has to be in force.
const publicSamplesInForce = 90

// TestPublicSamples counts the Istio objects of docs/public-samples.md that are in force, and holds the page's
// count and its list of the others against that.
func TestPublicSamples(t *testing.T) {
	t.Parallel()
	const path, heading = "../../docs/public-samples.md", "\n## What is in force\n"
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page, counted, _ := strings.Cut(string(content), heading)
	rows := regexp.MustCompile("(?m)^\\| ([0-9]{2}) \\| [^|]+ \\| `[^`]+` \\|$").FindAllStringSubmatch(page, -1)
	copies, err := filepath.Glob("testdata/public-samples/*.yaml")
	if err != nil || len(rows) < 20 || len(copies) != len(rows) {
		t.Fatalf("%d files in the table, %d copies, %v: want one copy of each, and at least 20", len(rows), len(copies), err)
	}
	have, all := map[string]int{}, map[string]int{}
	var reasons strings.Builder
	for _, row := range rows {
		for _, o := range istioObjects(t, filepath.Join("testdata/public-samples", row[1]+".yaml")) {
			kind := string(o.Meta.Kind)
			all[kind]++
			if o.InForce() {
				have[kind]++
				continue
			}
			for _, f := range append(slices.Clone(o.Faults), o.NotInForce...) {
				if f.Severity == manifest.Error {
					_, _ = fmt.Fprintf(&reasons, "| %s | %s | `%s`: %s |\n", row[1], kind, f.Code, f.Message)
				}
			}
		}
	}
	sum := func(m map[string]int) (n int) {
		for _, c := range m {
			n += c
		}
		return n
	}
	if sum(have)*100 < sum(all)*publicSamplesInForce {
		t.Errorf("%d of %d objects are in force, want %d %%:\n%s", sum(have), sum(all), publicSamplesInForce, reasons.String())
	}
	var text strings.Builder
	_, _ = fmt.Fprintf(&text, "\n%d of %d objects.\n\n| Kind | Objects | In force |\n|---|---|---|\n", sum(have), sum(all))
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		_, _ = fmt.Fprintf(&text, "| %s | %d | %d |\n", kind, all[kind], have[kind])
	}
	if reasons.Len() > 0 {
		text.WriteString("\nNot in force:\n\n| File | Kind | Why |\n|---|---|---|\n" + reasons.String())
	}
	want := text.String()
	if diff := cmp.Diff(counted, want); diff != "" {
		if !*update {
			t.Fatalf("the page differs from what is counted (run with -update):\n%s", diff)
		}
		if err := os.WriteFile(path, []byte(page+heading+want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// istioObjects are the objects of a file that are of Istio's API, all of them.
func istioObjects(t *testing.T, path string) []*manifest.Object {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, _ := manifest.Decode(manifest.Options{}, path, content)
	var out []*manifest.Object
	for _, o := range file.Objects {
		if group, _, _ := strings.Cut(o.APIVersion, "/"); strings.HasSuffix(group, ".istio.io") {
			out = append(out, o)
		}
	}
	if want := len(regexp.MustCompile(`(?m)^apiVersion: "?[a-z]+\.istio\.io/`).FindAll(content, -1)); file.Unparsable || want == 0 || len(out) != want {
		t.Fatalf("%s: %d objects of Istio, want %d", path, len(out), want)
	}
	return out
}
