package manifest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/manifest"
)

const matchOf = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: r, namespace: evil}\nspec:\n  hosts: [a.evil.test]\n  http:\n  - match:\n    - MATCH\n    route:\n    - destination: {host: a.evil.test}\n"

// TestExpressionsOfTenantsAreLimited: an expression whose program is too large for an Envoy is refused in a source that is
// bound to namespaces, at its position with the figure, and in no other.
func TestExpressionsOfTenantsAreLimited(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, match, want string }{
		{"nested", `uri: {regex: '/(\pL{100}){10}(\pL{100}){10}'}`, "a.yaml:8:20: error [FL0234] VirtualService evil/r spec.http[0].match[0].uri.regex: refused: the program of the regular expression has 2"},
		{"classes", `uri: {regex: '\pL{30}'}`, "has 35074 instructions in a proxy; in a source that is bound to namespaces it may have 4096"},
		{"header", `headers: {x.y: {regex: '.{1000}'}}`, `a.yaml:8:30: error [FL0234] VirtualService evil/r spec.http[0].match[0].headers["x.y"].regex: refused`},
		{"query", `queryParams: {q: {regex: '.{1000}'}}`, "spec.http[0].match[0].queryParams"},
		{"wide_escape", `uri: {regex: '/[\x{100}-\x{1ff}]'}`, `Envoys from 1.39 on do not take \x{100}`},
		{"within", `uri: {regex: '/[a-z]{1,200}(\?.*)?'}`, ""},
		{"two_classes", `uri: {regex: '/\pL+\pN+'}`, ""},
		{"byte_escape", `uri: {regex: '/\x{41}'}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			text := []byte(strings.Replace(matchOf, "MATCH", c.match, 1))
			_, faults := manifest.Decode(manifest.Options{Namespaces: []string{"evil"}}, "a.yaml", text)
			if said := fmt.Sprint(faults); c.want == "" && len(faults) > 0 || !strings.Contains(said, c.want) {
				t.Errorf("bound: %q, want %q", said, c.want)
			}
			if _, faults = manifest.Decode(manifest.Options{}, "a.yaml", text); len(faults) > 0 {
				t.Errorf("unbound: %v", faults)
			}
		})
	}
	rewrite := strings.Replace(matchOf, "    route:", "    rewrite: {uriRegexRewrite: {match: '.{1000}', rewrite: /}}\n    route:", 1)
	_, faults := manifest.Decode(manifest.Options{Namespaces: []string{"evil"}}, "a.yaml", []byte(strings.Replace(rewrite, "MATCH", "uri: {prefix: /}", 1)))
	if len(faults) != 1 || faults[0].Code != manifest.CodeExpression || faults[0].Field != "spec.http[0].rewrite.uriRegexRewrite.match" {
		t.Errorf("rewrite: %v", faults)
	}
}

// TestExpressionsAreFoundInEveryKind: objects with maps of any key are read in a source that is bound to namespaces.
func TestExpressionsAreFoundInEveryKind(t *testing.T) {
	t.Parallel()
	text := "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: p, namespace: evil}\nspec:\n  selector: {matchLabels: {app: a}}\n  mtls: {mode: STRICT}\n  portLevelMtls: {80: {mode: DISABLE}}\n"
	file, faults := manifest.Decode(manifest.Options{Namespaces: []string{"evil"}}, "a.yaml", []byte(text))
	if len(faults) > 0 || !file.Objects[0].Valid {
		t.Errorf("refused: %v", faults)
	}
}
