package manifest_test

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/manifest"
)

// TestWithEnd: the line that ends a text is written where it means nothing else, once, and is no difference
// between a file and what is stored of it.
func TestWithEnd(t *testing.T) {
	t.Parallel()
	text := gatewayHead + "metadata:\n  name: a\n  namespace: shop\n" + gatewaySpec
	keys := "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: a, namespace: shop}\n" +
		"spec:\n  jwtRules:\n  - issuer: x\n    jwks: |\n      {\"keys\": []}"
	for name, c := range map[string]struct{ text, want string }{
		"newline":              {text, text + "...\n"},
		"no_newline":           {strings.TrimRight(text, "\n"), text + "...\n"},
		"CRLF":                 {strings.ReplaceAll(text, "\n", "\r\n"), strings.ReplaceAll(text+"...\n", "\n", "\r\n")},
		"has_it":               {text + "...\n", text + "...\n"},
		"has_it_commented":     {text + "... # end\n\n", text + "... # end\n\n"},
		"in_its_middle":        {text + "...\n---\n" + strings.Replace(text, "name: a", "name: b", 1), text + "...\n---\n" + strings.Replace(text, "name: a", "name: b", 1) + "...\n"},
		"comments_behind":      {text + "# end", text + "# end\n...\n"},
		"separator_behind":     {text + "---\n", text + "---\n...\n"},
		"block_of_text":        {keys, keys},
		"JSON_with_tabs":       {"{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"List\",\n\t\"items\": []\n}\n", "{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"List\",\n\t\"items\": []\n}\n"},
		"JSON_without_newline": {"{\"a\": 1}", "{\"a\": 1}\n"},
		"only_comments":        {"# none\n", "# none\n...\n"},
		"not_YAML":             {"a: [\n", "a: [\n"},
		"nothing":              {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := manifest.WithEnd(manifest.Options{}, []byte(c.text))
			if string(got) != c.want {
				t.Errorf("it is %q, want %q", got, c.want)
			}
			if again := manifest.WithEnd(manifest.Options{}, got); string(again) != c.want {
				t.Errorf("again, it is %q, want %q", again, c.want)
			}
			if stored := manifest.AsStored(manifest.Options{}, []byte(c.text), got); string(stored) != c.want {
				t.Errorf("the file differs from what was written of it: %q, want %q", stored, c.want)
			}
			if stored := manifest.AsStored(manifest.Options{}, []byte(c.text), []byte(c.text)); string(stored) != c.text {
				t.Errorf("the file differs from itself: %q", stored)
			}
		})
	}
}
