package tree_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry/manifest/tree"
)

// one parses a text of one document without problems.
func one(t *testing.T, text string) *tree.Node {
	t.Helper()
	docs := tree.Parse([]byte(text))
	if len(docs) != 1 || len(docs[0].Problems) != 0 {
		t.Fatalf("%q: got %+v; want one document without problems", text, docs)
	}
	return docs[0].Root
}

// TestScalars has the values that Istio's YAML reader was seen to make of these
// texts, after their way through JSON.
func TestScalars(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]any{
		"y": true, "Y": true, "yes": true, "on": true, "TRUE": true, "yEs": "yEs", "tRUE": "tRUE",
		"n": false, "No": false, "OFF": false,
		"~": nil, "null": nil, "nUll": "nUll",
		"0777": int64(511), "0o17": int64(15), "0x1F": int64(31), "0b11": int64(3), "-0b11": int64(-3),
		"08": int64(8), "1_000": int64(1000), "+12": int64(12), "_1": "_1",
		"1.0": int64(1), "1.": int64(1), "1.5": 1.5, "1e3": int64(1000), "-.5": -.5, "+.5": .5, "._5": "._5",
		"9223372036854775808": float64(1 << 63), "1e400": "1e400",
		"12:30:45": "12:30:45", "2024-01-01": "2024-01-01", "10.0.0.1": "10.0.0.1", "=": "=",
		`"y"`: "y", `'5'`: "5", "|-\n    5": "5", "!!str 5": "5", `!!int "5"`: int64(5), "!!float 1": int64(1),
		"!!binary aGVsbG8=": "hello", "!custom 5": "5", "": nil,
	} {
		got := one(t, "a: "+text+"\n").Get("a").JSON()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"8080": "8080", "0x10": "16", "y": "true", "1.5": "1.5", "1.0": "1", "1e18": "1e+18", ".inf": ".inf", "'~'": "~", "a.b/c": "a.b/c",
	} {
		if got := one(t, "{"+text+": a}").Fields[0].Key; got != want {
			t.Errorf("the key %s is %q; want %q", text, got, want)
		}
	}
	for _, text := range []string{"~", "[a]", "{a: b}", "18446744073709551615"} {
		docs := tree.Parse([]byte("? " + text + "\n: a\n"))
		if len(docs) != 1 || len(docs[0].Problems) != 1 || docs[0].Problems[0].Code != tree.Value {
			t.Errorf("the key %s was taken: %+v", text, docs)
		}
	}
}

func TestStreams(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text  string
		lines []int // where each document starts
	}{
		"empty":         {"", nil},
		"comments":      {"# a\n---\n# b\n--- \n", nil},
		"two":           {"a: 1\n---\nb: 2\n", []int{1, 3}},
		"inline":        {"--- {a: 1}\n--- # c\nb: 2\n", []int{1, 3}},
		"directive":     {"%YAML 1.1\n---\na: 1\n---\nb: 2\n", []int{3, 5}},
		"end_marker":    {"a: 1\n...\n---\nb: 2\n...\n", []int{1, 4}},
		"crlf":          {"a: 1\r\n---\r\nb: 2\r\n", []int{1, 3}},
		"bom":           {"\ufeffa: 1\n", []int{1}},
		"dashes_inside": {"a: |\n  ---\n  b\nc: '---'\n", []int{1}},
		"json":          {"{\n\t\"a\": 1\n}\n---\n{\"b\":\t2}\n", []int{1, 5}},
		"broken_first":  {"a: [\n---\nb: 2\n", []int{0, 3}},
	} {
		var lines []int
		for _, doc := range tree.Parse([]byte(test.text)) {
			line := 0
			if doc.Root != nil {
				line = doc.Root.Pos.Line
			}
			lines = append(lines, line)
		}
		if diff := cmp.Diff(test.lines, lines); diff != "" {
			t.Errorf("%s: documents start at other lines (-want +got):\n%s", name, diff)
		}
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a: 1\na: 2\n":                        "2:1 a",
		"a:\n  b: 1\n  'b': 2\n":              "3:3 a.b",
		"a: {c: 1}\nb: {<<: {c: 1}, c: 2}\n":  "2:17 b.c",
		"b: {<<: 5}\n":                        "1:9 b",
		"a: &a [1, *a]\n":                     "1:11 a[1]",
		"a: .nan\n":                           "1:4 a",
		"a: !!int x\n":                        "1:4 a",
		"a:\n\tb: 1\n":                        "2:1 ",
		"a: b: c\n":                           "1:1 ",
		"a: 1\n# ok\nb: \xff\n":               "3:4 ",
		strings.Repeat("[", 200) + "]":        "1:1 ",
		strings.Repeat("- ", 200) + "a":       "1:257 " + strings.Repeat("[0]", 128),
		"a: &x {b: 1}\nc: {<<: [*x, {d: 2}]}": "",
	} {
		docs := tree.Parse([]byte(text))
		got := ""
		var gotSb114 strings.Builder
		for _, p := range docs[0].Problems {
			fmt.Fprintf(&gotSb114, "%d:%d %s", p.Pos.Line, p.Pos.Column, p.Path)
		}
		got += gotSb114.String()
		if got != want {
			t.Errorf("%q: problems at %q; want %q: %+v", text, got, want, docs[0].Problems)
		}
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	root := one(t, "spec:\n  http:\n  - timeout: 5s\n    labels: {a.b/c: x}\n  - weight: 1\n")
	for path, want := range map[string]tree.Position{
		"spec.http[0].timeout":           {Line: 3, Column: 14},
		"spec.http[0].missing":           {Line: 3, Column: 5},
		"spec.http[9]":                   {Line: 3, Column: 3},
		"spec.http[0].labels.a.b/c":      {Line: 4, Column: 21},
		`spec.http[0].labels["a.b/c"]`:   {Line: 4, Column: 21},
		"spec.http[0].labels[a.b/c].x":   {Line: 4, Column: 21},
		"nothing":                        {Line: 1, Column: 1},
		"":                               {Line: 1, Column: 1},
		"spec.http[1].weight.and.beyond": {Line: 5, Column: 13},
	} {
		if got := root.Nearest(path); got != want {
			t.Errorf("%s is at %v; want %v", path, got, want)
		}
	}
}

// TestDuplicatesOfMany: a key that is there twice is found in short maps and in
// long ones, and so is where it was first.
func TestDuplicatesOfMany(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 16, 17, 18, 200} {
		var text strings.Builder
		text.WriteString("top:\n")
		for i := range n {
			fmt.Fprintf(&text, "  k%d: {a: [1, {b.c: 1, b.c: 2}]}\n", i)
		}
		fmt.Fprintf(&text, "  k%d: 1\n  k0: 2\n", n-1)
		docs := tree.Parse([]byte(text.String()))
		if len(docs) != 1 || len(docs[0].Root.Get("top").Fields) != n {
			t.Fatalf("%d keys: %d documents", n, len(docs))
		}
		problems := docs[0].Problems
		if len(problems) != n+2 {
			t.Fatalf("%d keys: %d problems", n, len(problems))
		}
		if got, want := problems[1].Path, `top.k1.a[1]["b.c"]`; got != want {
			t.Errorf("%d keys: path %q, want %q", n, got, want)
		}
		for i, want := range map[int]string{n: fmt.Sprintf("on line %d;", n+1), n + 1: "on line 2;"} {
			if p := problems[i]; p.Code != tree.DuplicateKey || !strings.Contains(p.Message, want) {
				t.Errorf("%d keys: %+v, want %q", n, p, want)
			}
		}
	}
}
