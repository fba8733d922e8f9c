package safetext

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestSanitize(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want string }{
		"nothing":   {"", ""},
		"plain":     {`Proto "größer" \ 8080/a.b:80 → 5`, `Proto "größer" \ 8080/a.b:80 → 5`},
		"lines":     {"a\r\n\n\tb\nc", "a b c"},
		"terminal":  {"\x1b[2J\x00\x7f", `\x1b[2J\x00\x7f`},
		"c1":        {"\u009b2J", `\u009b2J`},
		"direction": {"\u202eabc\u2066", `\u202eabc\u2066`},
		"unseen":    {"a\u200b\u2028\U000e0041", `a\u200b\u2028\U000e0041`},
		"not_utf8":  {"a\xff\xc3", `a\xff\xc3`},
	} {
		if got := Sanitize(c.in, 100); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestSanitizedTextIsShort(t *testing.T) {
	t.Parallel()
	if got, want := Sanitize(strings.Repeat("ö", 100), 64), strings.Repeat("ö", 19)+"… (162 bytes more)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if s := strings.Repeat("a", 64); Sanitize(s, 64) != s {
		t.Error("what fits was cut")
	}
}

func FuzzSanitize(f *testing.F) {
	f.Add("\x1b[2J\r\n\u202e", 32)
	f.Add(strings.Repeat("\n\u009bö", 50), 64)
	f.Fuzz(func(t *testing.T, s string, most int) {
		most = max(32, min(most, 1<<20))
		got := Sanitize(s, most)
		if len(got) > most {
			t.Errorf("%d bytes, at most %d: %q", len(got), most, got)
		}
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("not plain: %q", got)
		}
		if again := Sanitize(got, most); again != got {
			t.Errorf("%q became %q", got, again)
		}
	})
}
