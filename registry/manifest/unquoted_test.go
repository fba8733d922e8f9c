package manifest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/manifest"
)

// TestUnquotedFaultsRepeatNothing reads files that are no manifests, as a link of a
// tenant may lead to: no word of them is in the faults, nor in what is known of the
// object. Faults in objects of Istio's stay as they are.
func TestUnquotedFaultsRepeatNothing(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"kind":      "apiVersion: hunter2/v1\nkind: hunter2\nmetadata: {name: hunter2, namespace: hunter2, labels: {hunter2: hunter2}}\n",
		"version":   "apiVersion: networking.istio.io/hunter2\nkind: VirtualService\nmetadata: {name: hunter2}\n",
		"near":      "apiVersion: networking.istio.io/v1\nkind: VirtualServic\nhunter2: hunter2\n",
		"settings":  "hunter2: hunter2\nhunter2: hunter2\n",
		"alias":     "a: *hunter2\n",
		"syntax":    "hunter2: [hunter2\n{hunter2\n",
		"scalar":    "hunter2\n",
		"list":      "apiVersion: v1\nkind: List\nhunter2: 1\nhunter2: 2\n",
		"item":      "apiVersion: v1\nkind: List\nitems: [{kind: hunter2, hunter2: 1, hunter2: 2}]\n",
		"tag":       "!hunter2 a: b\n",
		"directive": "%hunter2\n---\na: b\n",
		"quoted":    "\"hunter2\": \"\\hunter2\"\n",
	} {
		file, faults := manifest.Decode(manifest.Options{Namespaces: []string{"shop"}, Unquoted: true}, "a.yaml", []byte(text))
		if len(faults) == 0 {
			t.Errorf("%s: there is no fault", name)
		}
		for _, f := range faults {
			if s := fmt.Sprintf("%+v", f); strings.Contains(s, "hunter2") {
				t.Errorf("%s: the fault says %s", name, s)
			}
			if f.Origin == nil || f.Origin.Path != "a.yaml" {
				t.Errorf("%s: the fault has no position: %v", name, f)
			}
		}
		for _, o := range file.Objects {
			if s := fmt.Sprintf("%+v %s", o.Meta, o.APIVersion); strings.Contains(s, "hunter2") || o.InForce() {
				t.Errorf("%s: the object is %s", name, s)
			}
		}
	}
	text := "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a, namespace: shop}\nspec: {wrong: 1}\n"
	_, quoted := manifest.Decode(manifest.Options{}, "a.yaml", []byte(text))
	_, unquoted := manifest.Decode(manifest.Options{Unquoted: true}, "a.yaml", []byte(text))
	if len(quoted) == 0 || fmt.Sprint(quoted) != fmt.Sprint(unquoted) {
		t.Errorf("of an object of Istio's: %v, and %v", quoted, unquoted)
	}
}
