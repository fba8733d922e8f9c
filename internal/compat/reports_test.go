package compat

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// judge runs tools/reports.py over folders with a fairlead that prints its arguments and what its
// manifest says, and exits with 3 where that says "exit 3".
func judge(t *testing.T, folders map[string]string, table, known string) (right bool, printed string) {
	t.Helper()
	dir := t.TempDir()
	for name, mesh := range folders {
		if err := os.MkdirAll(filepath.Join(dir, "reports", name), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "reports", name, "mesh.yaml"), []byte(mesh), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fake := filepath.Join(dir, "fairlead")
	program := "#!/bin/sh\necho \"$@\"\nfor last; do :; done\nif [ -d \"$last\" ]; then cat \"$last\"/*; last=$last/mesh.yaml; else cat \"$last\" >&2; fi\n! grep -q 'exit 3' \"$last\" || exit 3\n"
	if err := os.WriteFile(fake, []byte(program), 0o700); err != nil {
		t.Fatal(err)
	}
	code := "import sys; sys.path.insert(0, 'tools'); from reports import *\n" +
		"sys.exit(0 if run(sys.argv[1], sys.argv[2], " + table + ", " + known + ") else 1)"
	cmd := exec.CommandContext(t.Context(), "python3", "-B", "-c", code, filepath.Join(dir, "reports"), fake)
	cmd.Dir = "../.."
	b, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "Traceback") {
		t.Fatalf("%s", b)
	}
	return cmd.ProcessState.Success(), string(b)
}

// TestReportsAreJudged: every folder needs an entry, every entry a folder; what is known to be wrong
// fails only once it is right.
func TestReportsAreJudged(t *testing.T) {
	t.Parallel()
	one := map[string]string{"01-a": "good\n"}
	for name, c := range map[string]struct {
		folders      map[string]string
		table, known string
		right        bool
		want         string
	}{
		"right":                     {one, `{'01-a': ([check('validate', '{mesh}', exit=0, has=['^validate {dir}/mesh.yaml', 'good'], lacks=['bad', '/tmp'])], {})}`, "{}", true, `right  01-a\nreports: 1 right, 0 known, 0 wrong`},
		"not printed":               {one, `{'01-a': ([analyze(has=['b.d'])], {})}`, "{}", false, "WRONG  01-a: `fairlead analyze {dir}` prints nothing that matches b.d\n"},
		"printed":                   {one, `{'01-a': ([analyze(lacks=['oo'])], {})}`, "{}", false, "WRONG  01-a: `fairlead analyze {dir}` prints good\n"},
		"another exit code":         {map[string]string{"01-a": "exit 3\n"}, `{'01-a': ([check('validate', '{mesh}', exit=0)], {})}`, "{}", false, "WRONG  01-a: `fairlead validate {mesh}` exits with 3, not 0: "},
		"the second check":          {one, `{'01-a': ([analyze(has=['good']), analyze(has=['bad'])], {})}`, "{}", false, `prints nothing that matches bad`},
		"one of two":                {one, `{'01-a': ([either(analyze(has=['bad']), analyze(has=['good']))], {})}`, "{}", true, `right  01-a`},
		"none of two":               {one, `{'01-a': ([either(analyze(has=['bad']), analyze(has=['worse']))], {})}`, "{}", false, `matches bad; and .*matches worse`},
		"files beside":              {one, `{'01-a': ([analyze(has=['beside'])], {'b.yaml': 'beside'})}`, "{}", true, `right  01-a`},
		"known":                     {one, `{'01-a': ([analyze(has=['bad'])], {})}`, "{'01-a': 'late'}", true, "known  01-a: late\n.*matches bad\nreports: 0 right, 1 known, 0 wrong"},
		"known and right":           {one, `{'01-a': ([analyze(has=['good'])], {})}`, "{'01-a': 'late'}", false, "WRONG  01-a: it is right now; take it out of KNOWN"},
		"a folder without an entry": {one, `{}`, "{}", false, "WRONG  01-a: no entry in REPORTS"},
		"an entry without a folder": {one, `{'01-a': ([], {}), '02-b': ([], {})}`, "{}", false, "WRONG  02-b: there is no such report"},
		"known without a folder":    {one, `{'01-a': ([], {})}`, "{'03-c': ''}", false, "WRONG  03-c: there is no such report"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			right, printed := judge(t, c.folders, c.table, c.known)
			if right != c.right || !regexp.MustCompile(c.want).MatchString(printed) {
				t.Errorf("right %v, want %v; it prints\n%swant %s", right, c.right, printed, c.want)
			}
		})
	}
}
