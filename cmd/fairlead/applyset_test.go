package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sidecar is an object without references; egress makes it differ.
func sidecar(name, egress string) string {
	return "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: " + name + ", namespace: " + name + "}\nspec: {egress: [{hosts: ['" + egress + "']}]}\n---\n"
}

// TestApplySets applies files, directories and standard input, and expects the files that the
// directory has afterwards, and what is reported of each object.
func TestApplySets(t *testing.T) {
	t.Parallel()
	a, b, c := sidecar("a", "./*"), sidecar("b", "./*"), sidecar("c", "./*")
	for name, x := range map[string]struct {
		have, from map[string]string
		stdin      string
		args       []string // relative to from, but for flags and -
		want       map[string]string
		says       []string
		code       int
	}{
		"repeated_flag": {
			have: map[string]string{"a.yaml": a}, from: map[string]string{"a.yaml": a, "b.yaml": b, "c.yaml": c},
			args: []string{"-f", "a.yaml", "-f", "b.yaml", "c.yaml"},
			want: map[string]string{"a.yaml": a, "b.yaml": b, "c.yaml": c},
			says: []string{"Sidecar a/a unchanged\nSidecar b/b created\nSidecar c/c created\n"},
		},
		"folder": {
			from: map[string]string{"team/a.yaml": a, "team/deep/b.yml": b, "team/readme.md": "x", "team/.git/c.yaml": c}, args: []string{"-f", "team"},
			want: map[string]string{"a.yaml": a, "deep/b.yml": b}, says: []string{"Sidecar a/a created\nSidecar b/b created\n"},
		},
		"changed_and_removed": {
			have: map[string]string{"a.yaml": a + b + c, "d.yaml": sidecar("d", "./*")}, from: map[string]string{"a.yaml": "# words\n" + a + sidecar("b", "*/*")}, args: []string{"a.yaml"},
			want: map[string]string{"a.yaml": "# words\n" + a + sidecar("b", "*/*"), "d.yaml": sidecar("d", "./*")},
			says: []string{"Sidecar a/a unchanged\nSidecar b/b changed\nSidecar c/c removed\n"},
		},
		"renamed": {
			have: map[string]string{"old.yaml": a + b}, from: map[string]string{"new.yaml": a + b + c}, args: []string{"-f", "new.yaml"},
			want: map[string]string{"new.yaml": a + b + c}, says: []string{"old.yaml: its objects are in ", "Sidecar a/a unchanged, was in ", "Sidecar c/c created\n"},
		},
		"partly_elsewhere": {
			have: map[string]string{"old.yaml": a + b}, from: map[string]string{"new.yaml": a}, args: []string{"-f", "new.yaml"},
			want: map[string]string{"old.yaml": a + b}, says: []string{"refused: nothing was written"}, code: exitInvalid,
		},
		"elsewhere_beside_what_cannot_be_read": {
			have: map[string]string{"old.yaml": a + "kind: [\n"}, from: map[string]string{"new.yaml": a}, args: []string{"-f", "new.yaml"},
			want: map[string]string{"old.yaml": a + "kind: [\n"}, says: []string{"is already defined at"}, code: exitInvalid,
		},
		"stdin_new":       {stdin: b + a, args: []string{"-f", "-"}, want: map[string]string{"sidecar-b-b.yaml": b + a}, says: []string{"Sidecar a/a created"}},
		"stdin_again":     {have: map[string]string{"sidecar-b-b.yaml": b}, stdin: b, args: []string{"-"}, want: map[string]string{"sidecar-b-b.yaml": b}, says: []string{"Sidecar b/b unchanged"}},
		"stdin_in_place":  {have: map[string]string{"mine.yaml": a}, stdin: a + c, args: []string{"-"}, want: map[string]string{"mine.yaml": a + c}, says: []string{"Sidecar a/a unchanged\nSidecar c/c created"}},
		"stdin_and_file":  {stdin: a, from: map[string]string{"c.yaml": c}, args: []string{"-", "c.yaml"}, want: map[string]string{"sidecar-a-a.yaml": a, "c.yaml": c}},
		"stdin_of_others": {have: map[string]string{"sidecar-b-b.yaml": b + c}, stdin: b, args: []string{"-"}, want: map[string]string{"sidecar-b-b.yaml": b + c}, says: []string{"has other objects"}, code: exitFailed},
		"stdin_empty":     {stdin: "\n", args: []string{"-"}, says: []string{"standard input is empty"}, code: exitFailed},
		"dry_run": {
			have: map[string]string{"old.yaml": a}, from: map[string]string{"new.yaml": a + b}, args: []string{"--dry-run", "-f", "new.yaml"},
			want: map[string]string{"old.yaml": a}, says: []string{"Sidecar a/a unchanged, was in ", "Sidecar b/b created\nit would be applied"},
		},
		"empty_folder": {from: map[string]string{"team/readme.md": ""}, args: []string{"team"}, says: []string{"no *.yaml"}, code: exitFailed},
		"same_name":    {from: map[string]string{"x/a.yaml": a, "y/a.yaml": b}, args: []string{"x", "y"}, says: []string{"two of the files"}, code: exitFailed},
		"hidden":       {from: map[string]string{".a.yaml": a}, args: []string{".a.yaml"}, says: []string{"begin with a dot"}, code: exitFailed},
		"nothing":      {says: []string{"missing argument"}, code: exitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, from := t.TempDir(), t.TempDir()
			for to, list := range map[string]map[string]string{dir: x.have, from: x.from} {
				for name, content := range list {
					path := filepath.Join(to, name)
					if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			args := []string{"apply", "--config-dir", dir, "--run-dir", from}
			for _, a := range x.args {
				if !strings.HasPrefix(a, "-") {
					a = filepath.Join(from, a)
				}
				args = append(args, a)
			}
			var out strings.Builder
			code := runWith(t.Context(), strings.NewReader(x.stdin), args, &out, &out)
			for _, s := range x.says {
				if !strings.Contains(out.String(), s) {
					t.Errorf("it does not say %q", s)
				}
			}
			got := map[string]string{}
			names, err := manifestFiles(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				content, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				text := string(content)
				if strings.Contains(out.String(), "written to "+name+"\n") {
					var marked bool
					if text, marked = strings.CutSuffix(text, "...\n"); !marked {
						t.Errorf("%s was written without its end", name)
					}
				}
				got[strings.TrimPrefix(name, dir+"/")] = text
			}
			if code != x.code || !maps.Equal(got, x.want) {
				t.Errorf("exit code %d, want %d; the directory has %v, want %v\n%s", code, x.code, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(x.want)), out.String())
			}
		})
	}
}
