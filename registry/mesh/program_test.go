package mesh_test

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestProgramsAreCountedAsEnvoyMakesThem compares with what Envoy 1.36.2 says of each expression ("RE2 program size
// of …"). Those that read bytes instead of UTF-8, from 1.39 on, make less.
func TestProgramsAreCountedAsEnvoyMakesThem(t *testing.T) {
	t.Parallel()
	for expression, size := range map[string]int{
		`/a`: 6, `[a-z]+/x`: 8, `a{1000}`: 1004, `.{1000}`: 8004, `.`: 12, `[^a]{1000}`: 8004, `\pL`: 1200, `\pL{30}`: 35884, `\w{1000}`: 3004, `[\pL\pN]{20}`: 26844,
		`(?i)k`: 8, `(?i)` + strings.Repeat("k", 500): 2004, strings.Repeat("a?", 500): 1004, strings.Repeat("(a*)*", 200): 1404, strings.Repeat("(a)", 300): 904, `\PL`: 1202, `\pN`: 237,
		`\p{Greek}`: 66, `(.*a){50}`: 554, `.*/x/.*`: 23, `(foo|bar|baz)+`: 14, `[α-ω]`: 8, `[\x{100}-\x{10000}]`: 14, `((a{10}){10}){10}`: 1224,
		`^/v[0-9]+/(users|orders)/[^/]+(\?.*)?$`: 42, `(\pL|\pN)+`: 1349, `\pL+\pN+`: 1436,
	} {
		if n := mesh.Program(expression); n*20 < size*19 || n*10 > size*14 {
			t.Errorf("%.40q: %d, and an Envoy has %d", expression, n, size)
		}
	}
	if n := mesh.Program(`(\pL{100}){10}(\pL{100}){10}`); n < 2_000_000 {
		t.Errorf("nested repeats: %d", n)
	}
	if n := mesh.Program(`a(`); n != 0 {
		t.Errorf("what is no expression has %d", n)
	}
}
