package manifest

import (
	"strings"
	"testing"
)

// TestFaultIsPlain: whoever may write one text cannot make the terminal of who
// reads of it do anything.
func TestFaultIsPlain(t *testing.T) {
	t.Parallel()
	text := "apiVersion: networking.istio.io/v1\nkind: \"\\e[31mEvil\"\nmetadata: {name: \"x\\e]52;c;x\\a\", namespace: \"\\u202e\"}\nspec: {\"\\x9b2J\": 1}\n"
	for _, text := range []string{text, strings.Replace(text, `\e[31mEvil`, "ServiceEntry", 1), "a: *\"\x1b[31m\n", "a: *\u202eb\n"} {
		_, faults := Decode(Options{Source: "files"}, "a\x1b[2J\u200b.yaml", []byte(text))
		if len(faults) == 0 {
			t.Fatalf("%q is not refused", text)
		}
		for _, f := range faults {
			if s := f.String(); strings.ContainsAny(s, "\x1b\a\n\u202e\u200b\u009b") {
				t.Errorf("%q", s)
			}
		}
	}
}
