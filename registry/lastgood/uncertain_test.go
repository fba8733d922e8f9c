package lastgood

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/manifest"
)

// TestUncertain: without saved versions, what is in force of a text is not known where an object of it may
// have been in force before. An object of a kind that is never built was not.
func TestUncertain(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: networking.istio.io/v1alpha3\nkind: "
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"good":             {head + "VirtualService\nmetadata: {name: a}\nspec: {hosts: [a.test], http: [{route: [{destination: {host: a.test}}]}]}\n", false},
		"broken":           {head + "VirtualService\nmetadata: {name: a}\nspec: {hosts: [a.test], htp: []}\n", true},
		"unbuilt_field":    {head + "VirtualService\nmetadata: {name: a}\nspec: {hosts: [a.test], http: [{headers: {request: {set: {a: '%ENVIRONMENT(A)%'}}}, route: [{destination: {host: a.test}}]}]}\n", true},
		"unbuilt_kind":     {head + "EnvoyFilter\nmetadata: {name: a}\nspec: {configPatches: []}\n", false},
		"unbuilt_no_name":  {head + "EnvoyFilter\nmetadata: {}\nspec: {configPatches: []}\n", true},
		"unbuilt_and_more": {head + "EnvoyFilter\nmetadata: {name: a}\nspec: {configPatches: []}\n---\n" + head + "Gateway\nmetadata: {name: b}\nspec: {servers: 1}\n", true},
		"not_yaml":         {"a: [\n", true},
	} {
		b := NewBlob([]byte(c.text))
		v := NextVersion(nil, b, Manifests(manifest.Options{}, "a.yaml", b.Content), time.Time{})
		if got := v.Uncertain(); got != c.want {
			t.Errorf("%s: %v, with %v", name, got, v.Faults())
		}
	}
}
