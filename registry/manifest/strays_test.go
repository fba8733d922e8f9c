package manifest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/manifest"
)

// TestStraysOfATenantAreBounded writes what is no object a hundred thousand times: a status and the memory of a server have
// some of it, and earlier objects of the file stay.
func TestStraysOfATenantAreBounded(t *testing.T) {
	t.Parallel()
	const n, most = 100_000, 20_010
	for name, text := range map[string]string{
		"documents": strings.Repeat("---\na\n", n),
		"no YAML":   strings.Repeat("---\na: [\n", n),
		"items":     "apiVersion: v1\nkind: List\nitems:\n" + strings.Repeat("- 1\n", n),
		"of others": strings.Repeat("---\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\n", n),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, faults := manifest.Decode(manifest.Options{Namespaces: []string{"shop"}, Unquoted: true}, "a.yaml", []byte(text))
			if len(faults) > most || len(file.Objects) > most || !file.Open && !file.Unparsable {
				t.Errorf("%d faults, %d objects, open %v", len(faults), len(file.Objects), file.Open)
			}
			if !slices.ContainsFunc(faults, func(f manifest.Fault) bool { return strings.Contains(f.Message, "nothing behind them is read") }) {
				t.Errorf("no fault names the limit; the last is %s", faults[len(faults)-1])
			}
		})
	}
}
