package main

import (
	"strings"
	"testing"
)

func TestUnified(t *testing.T) {
	t.Parallel()
	before := "1\n2\n3\n4\n5\n6\n7\n8\n"
	after := "1\n2\n3\n4\nfive \x1b[31m\n6\n7\n8\n-- 9"
	var out strings.Builder
	if err := writeUnified(&out, "key", "file", []byte(before), []byte(after)); err != nil {
		t.Fatal(err)
	}
	want := "--- key\n+++ file\n@@ -2,7 +2,8 @@\n 2\n 3\n 4\n-5\n+five \uFFFD[31m\n 6\n 7\n 8\n+-- 9\n\\ No newline at end of file\n"
	if out.String() != want {
		t.Errorf("got:\n%q\nwant:\n%q", out.String(), want)
	}
	if added, removed := changedLines([]byte(before), []byte(after)); added != 2 || removed != 1 {
		t.Errorf("%d added and %d removed, not 2 and 1", added, removed)
	}
	if text, err := unified("a", "b", []byte(before), []byte(before)); text != "" || err != nil {
		t.Errorf("equal texts: %q, %v", text, err)
	}
}
