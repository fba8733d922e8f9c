package analysis_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/fairlead/fairlead/registry/analysis"
	"github.com/fairlead/fairlead/registry/manifest"
)

var update = flag.Bool("update", false, "write the golden parts anew")

// TestCases analyzes the manifests of each archive and compares the findings with
// the part named "want". A case whose name begins with "others" has other sources.
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
				if f.Name == "want" {
					want = i
					continue
				}
				decoded, faults := manifest.Decode(manifest.Options{}, f.Name, f.Data)
				if manifest.HasErrors(faults) {
					t.Errorf("the manifests of a case must be valid: %v", faults)
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

func findings(in analysis.Input) string {
	var out strings.Builder
	for _, d := range analysis.Analyze(in) {
		out.WriteString(d.String() + "\n")
	}
	return out.String()
}
