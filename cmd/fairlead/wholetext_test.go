package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
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
	ports := "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: shop}\n" +
		"spec:\n  action: DENY\n  rules:\n  - to:\n    - operation:\n        ports:\n        - \"80\"\n        - \"90\"\n"
	undated := gatewayText("zebra", "9000", "")
	dated := string(manifest.WithGatewayDates(manifest.Options{}, []byte(undated+"---\n"+policy("b")), map[mesh.Key]time.Time{
		{Kind: mesh.KindGateway, Namespace: "shop", Name: "zebra"}: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}))
	for name, c := range map[string]struct{ first, then, want, refused string }{
		"JSON":                    {first: json("PERMISSIVE") + "\n", then: json("STRICT"), want: json("STRICT") + "\n"},
		"only_a_comment":          {first: policy("a") + "---\n" + policy("b"), then: "# gone\n", want: "# gone\n...\n"},
		"removed":                 {first: policy("a") + "---\n" + policy("b"), then: policy("a") + "...\n", want: policy("a") + "...\n"},
		"removed_before_the_end":  {first: policy("a") + "---\n" + policy("b"), then: policy("b"), want: policy("b") + "...\n"},
		"removed_and_edited":      {first: policy("a") + "---\n" + policy("b"), then: "# b is gone\n" + policy("a"), want: "# b is gone\n" + policy("a") + "...\n"},
		"cut_at_a_line":           {first: policy("a") + "---\n" + policy("b"), then: policy("a"), refused: "does not end with the line"},
		"cut_at_a_separator":      {first: policy("a") + "---\n" + policy("b"), then: policy("a") + "---\n", refused: "does not end with the line"},
		"separator_removed":       {first: policy("a") + "---\n", then: policy("a"), want: policy("a") + "...\n"},
		"comment_removed":         {first: policy("a") + "# nothing follows\n", then: policy("a"), want: policy("a") + "...\n"},
		"cut_in_the_last_object":  {first: ports, then: strings.TrimSuffix(ports, "        - \"90\"\n"), refused: "end it with a newline and the line `...`"},
		"cut_behind_a_date":       {first: dated, then: undated, refused: "does not end with the line"},
		"no_newline_but_the_same": {first: policy("a"), then: strings.TrimRight(policy("a"), "\n"), want: policy("a") + "...\n"},
		"no_newline_and_less":     {first: policy("a") + "---\n" + policy("b"), then: "# b\n" + strings.TrimRight(policy("a"), "\n"), refused: "does not end with a newline, and has no AuthorizationPolicy shop/b"},
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
				if code != exitInvalid || !strings.Contains(out, "refused: nothing was written") || !strings.Contains(out, c.refused) {
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
