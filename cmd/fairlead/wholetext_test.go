package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestApplyWritesWholeTexts: what `apply` writes has its end, so that the server takes it as whole; and a
// text that may have lost its own is refused, because an end that is written behind it would hide that.
func TestApplyWritesWholeTexts(t *testing.T) {
	t.Parallel()
	policy := func(name string) string {
		return "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: " + name + ", namespace: shop}\nspec: {action: DENY, rules: [{}]}\n"
	}
	json := func(mode string) string {
		return `{"apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication", "metadata": {"name": "p", "namespace": "shop"}, "spec": {"mtls": {"mode": "` + mode + `"}}}`
	}
	keys := "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: a, namespace: shop}\n" +
		"spec:\n  jwtRules:\n  - issuer: x\n    jwks: |\n      {\"keys\": []}"
	for name, c := range map[string]struct{ first, then, want, refused string }{
		"JSON":                    {first: json("PERMISSIVE") + "\n", then: json("STRICT"), want: json("STRICT") + "\n"},
		"only_a_comment":          {first: policy("a") + "---\n" + policy("b"), then: "# gone\n", want: "# gone\n...\n"},
		"removed":                 {first: policy("a") + "---\n" + policy("b"), then: policy("a"), want: policy("a") + "...\n"},
		"no_newline_but_the_same": {first: policy("a"), then: strings.TrimRight(policy("a"), "\n"), want: policy("a") + "...\n"},
		"no_newline_and_less":     {first: policy("a") + "---\n" + policy("b"), then: strings.TrimRight(policy("a"), "\n"), refused: "does not end with a newline"},
		"no_newline_in_a_block":   {first: keys + "\n", then: keys, refused: "does not end with the line"},
		"JSON_behind_the_line":    {first: policy("a"), then: json("STRICT"), refused: "does not end with the line"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, from := t.TempDir(), filepath.Join(t.TempDir(), "pol.yaml")
			apply := func(text string) (int, string) {
				if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				code, out, errs := cli(t, "apply", from, "--config-dir", dir, "--run-dir", t.TempDir(), "--wait", "0s")
				return code, out + errs
			}
			if code, out := apply(c.first); code != 0 {
				t.Fatalf("%d\n%s", code, out)
			}
			code, out := apply(c.then)
			if c.refused != "" {
				if code == 0 || !strings.Contains(out, c.refused) {
					t.Errorf("it is not refused with %q: %d\n%s", c.refused, code, out)
				}
				return
			}
			got, err := os.ReadFile(filepath.Join(dir, "pol.yaml"))
			if code != 0 || err != nil || string(got) != c.want {
				t.Errorf("%d, %v: it is %q, want %q\n%s", code, err, got, c.want, out)
			}
		})
	}
}
