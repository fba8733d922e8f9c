package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// sides are the two texts that a comparison is of.
func sides(edits []edit) (before, after []string) {
	for _, e := range edits {
		if e.kind != '+' {
			before = append(before, e.line)
		}
		if e.kind != '-' {
			after = append(after, e.line)
		}
	}
	return before, after
}

// common is the length of the longest common subsequence, by the book.
func common(a, b []string) int {
	row := make([]int, len(b)+1)
	for i := range a {
		diagonal := 0
		for j := range b {
			up := row[j+1]
			if a[i] == b[j] {
				row[j+1] = diagonal + 1
			} else {
				row[j+1] = max(row[j+1], row[j])
			}
			diagonal = up
		}
	}
	return row[len(b)]
}

// TestCompareLines compares random texts: the comparison has both of them in it
// and no way is shorter.
func TestCompareLines(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	text := func() []string {
		list := make([]string, rng.IntN(12))
		for i := range list {
			list[i] = string(rune('a'+rng.IntN(4))) + "\n"
		}
		return list
	}
	for range 5000 {
		a, b := text(), text()
		edits := compareLines(a, b)
		before, after := sides(edits)
		if !slices.Equal(a, before) || !slices.Equal(b, after) {
			t.Fatalf("%q and %q: %v", a, b, edits)
		}
		if want := len(a) + len(b) - common(a, b); len(edits) != want {
			t.Fatalf("%q and %q: %d lines, want %d", a, b, len(edits), want)
		}
	}
	var a, b []string
	for i := range 3000 {
		a, b = append(a, fmt.Sprint("a", i)), append(b, fmt.Sprint("b", i))
	}
	before, after := sides(compareLines(a, b))
	if !slices.Equal(a, before) || !slices.Equal(b, after) {
		t.Error("two large texts that have nothing in common are not in their comparison")
	}
}

func TestUnified(t *testing.T) {
	t.Parallel()
	var a []string
	for i := range 30 {
		a = append(a, fmt.Sprintf("line %d\n", i+1))
	}
	b := slices.Clone(a)
	b[4] = "five\n"
	b = slices.Insert(b, 20, "new\n")
	b[len(b)-1] = "line 30"
	var out strings.Builder
	if err := unified(&out, compareLines(a, b)); err != nil {
		t.Fatal(err)
	}
	want := `@@ -2,7 +2,7 @@
 line 2
 line 3
 line 4
-line 5
+five
 line 6
 line 7
 line 8
@@ -18,6 +18,7 @@
 line 18
 line 19
 line 20
+new
 line 21
 line 22
 line 23
@@ -27,4 +28,4 @@
 line 27
 line 28
 line 29
-line 30
+line 30
\ No newline at end of file
`
	if out.String() != want {
		t.Errorf("got:\n%s", out.String())
	}
	out.Reset()
	if err := unified(&out, compareLines(nil, []string{"x\n"})); err != nil || out.String() != "@@ -0,0 +1 @@\n+x\n" {
		t.Errorf("of a new text: %q, %v", out.String(), err)
	}
}
