package main

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/consultest"
)

// TestPushOfACutCopy: a file that was pulled, and lost its end at any line, takes nothing away from its key: push does
// not write an end behind it. With an end of its own it is deliberate.
func TestPushOfACutCopy(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	policy := func(name string) string {
		return "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: " + name + ", namespace: shop}\n" +
			"spec:\n  action: DENY\n  rules:\n  - to:\n    - operation:\n        paths: [\"/" + name + "\"]\n        ports: [\"80\"]\n"
	}
	text := policy("one") + "---\n" + policy("two")
	author := newPlace(t, a, "fairlead/cut-copy")
	author.file("a.yaml", text)
	author.run(0, []string{"push"}, "pushed 1 key")
	p := author.other()
	p.run(0, []string{"pull"}, "a.yaml: created")
	whole := p.files()["a.yaml"]
	if whole != text+"...\n" {
		t.Fatalf("the pulled file is %q", whole)
	}
	cuts := 0
	for n := range len(text) {
		if n == 0 || text[n-1] != '\n' {
			continue
		}
		cuts++
		p.file("a.yaml", text[:n])
		p.run(1, []string{"push"}, "refused: nothing was written")
		p.run(1, []string{"diff"}, "\n-...\n")
		if got := p.keys()["a.yaml"]; got != text {
			t.Fatalf("after a cut at byte %d the key is %q", n, got)
		}
	}
	if want := strings.Count(text, "\n") - 1; cuts != want {
		t.Errorf("%d cuts, want %d", cuts, want)
	}
	p.file("a.yaml", policy("one"))
	p.run(1, []string{"push", "--force"}, "a.yaml may be cut off: it does not end with the line \"...\", as it did", "If this is meant, end it with a newline and the line `...`")
	p.run(1, []string{"pull"}, "it was edited here")

	// Without the line alone nothing else is missing, and the line is not forgotten.
	p.file("a.yaml", text)
	p.run(1, []string{"diff"}, "a.yaml: no object differs", "-...")
	p.run(0, []string{"push"}, "are as the files", "a line \"...\" that the file has lost")
	p.file("a.yaml", policy("one"))
	p.run(1, []string{"push"}, "a.yaml may be cut off")

	p.file("a.yaml", policy("one")+"...\n")
	p.run(0, []string{"push"}, "AuthorizationPolicy shop/two removed", "pushed 1 key")

	// The author's file never had the line: what it lacks is an edit, as without a pull.
	author.run(0, []string{"push"}, "AuthorizationPolicy shop/two created")
	author.run(0, []string{"pull"}, "1 file as in Consul already")
	author.file("a.yaml", policy("two"))
	author.run(0, []string{"push"}, "AuthorizationPolicy shop/one removed")
}

// TestDatesOfOthers: config diff hides the date that a push wrote, and shows one that somebody else wrote since.
func TestDatesOfOthers(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	p := newPlace(t, a, "fairlead/dates-of-others")
	text := gatewayText("zebra", "9000", "")
	p.file("zebra.yaml", text)
	p.run(0, []string{"push", "--config-dir", t.TempDir()}, "gets creationTimestamp")
	p.run(0, []string{"pull"}, "1 file as in Consul already")
	p.run(0, []string{"diff"})
	ours := p.keys()["zebra.yaml"]
	date := dateIn(t, ours, text)
	p.put("zebra.yaml", text+"...\n")
	p.run(0, []string{"diff"}) // neither has a date

	p.put("zebra.yaml", strings.Replace(ours, date, "2001-01-01T00:00:00Z", 1)+"...\n")
	want := "-  creationTimestamp: \"2001-01-01T00:00:00Z\""
	p.run(1, []string{"diff"}, "zebra.yaml: Gateway shop/zebra changed", want)
	p.run(0, []string{"push"}, "are as the files", "a creationTimestamp that somebody else has written")
	p.run(1, []string{"diff"}, want) // the push has not hidden it
	p.file("zebra.yaml", strings.Replace(text, "9000", "9001", 1))
	p.run(1, []string{"push"}, "somebody else has changed it since")
	p.file("zebra.yaml", text)
	p.run(0, []string{"pull"}, "zebra.yaml: updated")
	p.run(0, []string{"diff"})
	p.file("zebra.yaml", ours+"...\n") // with another date of its own
	p.run(1, []string{"diff"}, want, "+  creationTimestamp: \""+date)
}
