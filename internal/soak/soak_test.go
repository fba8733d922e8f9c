package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

const testSource = `package shop_test

import "testing"

// TestOne says something.
func TestOne(t *testing.T) {
	help(t)
}

type fake struct {
	n int
}

func (f *fake) TestLike() { f.n++ }

func TestTwo(t *testing.T) {
	help(t)
}

func FuzzThree(f *testing.F) { f.Fuzz(func(*testing.T, string) {}) }

func BenchmarkFour(b *testing.B) { b.Loop() }

func TestMain(m *testing.M) { m.Run() }

func help(t *testing.T) { t.Helper() }
`

// at finds the lines of a text that have a word.
func at(word string) []span {
	for i, line := range strings.Split(testSource, "\n") {
		if strings.Contains(line, word) {
			return []span{{i + 1, i + 1}}
		}
	}
	return nil
}

// behind is where lines behind the one with a word were removed.
func behind(word string) []span {
	s := at(word)[0]
	return []span{{s.to + 1, s.to}}
}

// TestChangesSelectTests: a test function runs by its name, and all tests of a package where what
// they share has changed.
func TestChangesSelectTests(t *testing.T) {
	t.Parallel()
	importers := func(dir string) ([]string, error) {
		if dir == "broken" {
			return nil, errors.New("no packages")
		}
		return []string{"a", "b"}, nil
	}
	for name, c := range map[string]struct {
		path, source string
		lines        []span
		want         []string
	}{
		"a test's body":            {lines: []span{{7, 7}}, want: []string{"./shop: TestOne"}},
		"its first line":           {lines: at("func TestTwo"), want: []string{"./shop: TestTwo"}},
		"lines removed in a test":  {lines: behind("func TestTwo"), want: []string{"./shop: TestTwo"}},
		"two tests":                {lines: append(at("func TestTwo"), span{7, 7}), want: []string{"./shop: TestOne, TestTwo"}},
		"a fuzz test":              {lines: at("FuzzThree"), want: []string{"./shop: FuzzThree"}},
		"a benchmark":              {lines: at("BenchmarkFour"), want: nil},
		"an import":                {lines: at("import"), want: nil},
		"a comment between":        {lines: at("says something"), want: nil},
		"lines removed in between": {lines: behind("n++"), want: nil},
		"a helper":                 {lines: at("func help"), want: []string{"./shop: every test"}},
		"a field of a fake":        {lines: at("n int"), want: []string{"./shop: every test"}},
		"a method of a fake":       {lines: at("TestLike"), want: []string{"./shop: every test"}},
		"the package's TestMain":   {lines: at("TestMain"), want: []string{"./shop: every test"}},
		"a test and a helper":      {lines: append(at("func help"), span{7, 7}), want: []string{"./shop: every test"}},
		"a new file":               {lines: nil, want: []string{"./shop: every test"}},
		"the product":              {path: "shop/shop.go", source: "package shop\n", want: nil},
		"a package for tests":      {path: "lab/lab.go", source: "package lab\n\nimport \"testing\"\n", want: []string{"./a: every test", "./b: every test", "./lab: every test"}},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			one := change{path: "shop/shop_test.go", source: []byte(testSource), lines: c.lines}
			if c.path != "" {
				one.path, one.source = c.path, []byte(c.source)
			}
			picked, err := choose([]change{one}, importers)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range picked {
				got = append(got, s.String())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("runs %q, want %q", got, c.want)
			}
		})
	}
	for _, c := range []change{{path: "a_test.go", source: []byte("package")}, {path: "broken/b.go", source: []byte("package b\n\nimport \"testing\"\n")}} {
		if picked, err := choose([]change{c}, importers); err == nil {
			t.Errorf("%s: %v and no error", c.path, picked)
		}
	}
}

// TestDiffsAreRead: lines that look like the header of a file may be in a hunk.
func TestDiffsAreRead(t *testing.T) {
	t.Parallel()
	got, err := parseDiff(`diff --git a/x/a.go b/x/a.go
index 1..2 100644
--- a/x/a.go
+++ b/x/a.go
@@ -3 +3 @@ func x() {
-++ b/other.go
+++ b/other.go
@@ -10,2 +9,0 @@
-one
-two
@@ -20,0 +18,3 @@
+one
diff --git a/b.go b/b.go
new file mode 100644
--- /dev/null
+++ b/b.go
@@ -0,0 +1,2 @@
+package b
`)
	want := map[string][]span{"x/a.go": {{3, 3}, {10, 9}, {18, 20}}, "b.go": {{1, 2}}}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{"@@ -1 @@\n", "@@ -1 +x @@\n", "@@ -1 +1,x @@\n"} {
		if got, err := parseDiff(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

// repository is a module in git whose main branch has a base, with files that were edited since.
func repository(t *testing.T, base, edited map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(files map[string]string) {
		for name, text := range files {
			path := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(base)
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"},
		{"add", "."},
		{"-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "-m", "base"},
	} {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = dir
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, b)
		}
	}
	write(edited)
	return dir
}

// TestSoakFindsWhatFailsNowAndThen runs the command in a repository with tests that fail in one of
// several runs, that have a race, that are skipped, and that pass.
func TestSoakFindsWhatFailsNowAndThen(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds programs with the race detector: runs without -short")
	}
	source := func(body string) string {
		return "package p\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nvar _ = os.Args\n\nfunc TestOld(t *testing.T) { t.Error(\"it did not change\") }\n\n" +
			"func TestNew(t *testing.T) {\n" + body + "}\n"
	}
	for name, c := range map[string]struct{ body, want, out string }{
		"passes": {body: "\tt.Log(1)\n", out: `(?s)^\./p: TestNew\nok \./p 1 of 3 with the race detector, .*ok \./p 3 of 3 .*all passed, 3 runs each\n$`},
		"fails once": {
			body: "\tf, err := os.OpenFile(\"runs\", os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)\n\tif err != nil {\n\t\tt.Fatal(err)\n\t}\n\tdefer f.Close()\n" +
				"\tf.WriteString(\"x\")\n\tif s, _ := f.Stat(); s.Size() == 2 {\n\t\tt.Error(\"the second run\")\n\t}\n",
			want: `(?s)^1 failed:\n  \./p run 2 with the race detector: TestNew; its output: (/\S+)$`,
		},
		"has a race": {
			body: "\tm, done := map[int]int{}, make(chan bool)\n\tgo func() { m[1]++; close(done) }()\n\tm[2]++\n\t<-done\n",
			want: `(?s)^3 failed:\n  \./p run 1 with the race detector: TestNew; .*run 3`,
		},
		"is skipped":     {body: "\tt.Skip(\"always\")\n", want: `^1 failed:\n  \./p TestNew: it was skipped in every run, which shows nothing$`},
		"does not build": {body: "\tx\n", want: `^building the tests of p: `},
	} {
		dir := repository(t, map[string]string{"go.mod": "module example.com/m\n\ngo 1.24\n", "p/p_test.go": source("")}, map[string]string{"p/p_test.go": source(c.body)})
		t.Chdir(dir)
		t.Setenv("TMPDIR", t.TempDir())
		var out strings.Builder
		err := run(t.Context(), &out, []string{"-runs", "3", "-load", "1"})
		if got := fmt.Sprint(err); c.want == "" && err != nil || c.want != "" && !regexp.MustCompile(c.want).MatchString(got) {
			t.Errorf("%s: %v, want %s\n%s", name, err, c.want, out.String())
		}
		if !regexp.MustCompile(c.out).MatchString(out.String()) {
			t.Errorf("%s: it prints\n%s", name, out.String())
		}
		if m := regexp.MustCompile(`its output: (/\S+)$`).FindStringSubmatch(fmt.Sprint(err)); m != nil {
			if b, err := os.ReadFile(m[1]); err != nil || !strings.Contains(string(b), "FAIL: TestNew") {
				t.Errorf("%s: what was kept: %s %v", name, b, err)
			}
		}
	}
}

// TestSoakSelectsInARepository: new files count, also before git knows them; the base can be given,
// and what is selected can be bounded.
func TestSoakSelectsInARepository(t *testing.T) {
	file := "package p\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) { t.Log(1) }\n"
	dir := repository(t, map[string]string{
		"go.mod": "module example.com/m\n\ngo 1.24\n", "p/p_test.go": file,
		"lab/lab.go":  "package lab\n\nimport \"testing\"\n\nfunc Help(t *testing.T) { t.Helper() }\n",
		"q/q_test.go": "package q\n\nimport (\n\t\"testing\"\n\n\t\"example.com/m/lab\"\n)\n\nfunc TestQ(t *testing.T) { lab.Help(t) }\n",
	}, map[string]string{
		"r/r_test.go": file,
		"p/p_test.go": strings.ReplaceAll(file, "Log(1)", "Log(2)"),
		"lab/lab.go":  "package lab\n\nimport \"testing\"\n\nfunc Help(t *testing.T) { t.Log(1) }\n",
	})
	t.Chdir(dir)
	list := func(args ...string) string {
		var out strings.Builder
		if err := run(t.Context(), &out, append(args, "-list")); err != nil {
			return err.Error()
		}
		return out.String()
	}
	if got, want := list(), "./lab: every test\n./p: TestA\n./q: every test\n./r: TestA\n"; got != want {
		t.Errorf("it selects\n%s, want\n%s", got, want)
	}
	if got, want := list("-base", "HEAD", "-only", "./p"), "./p: TestA\n"; got != want {
		t.Errorf("it selects\n%s, want\n%s", got, want)
	}
	if got := list("-base", "HEAD", "-only", "x"); !strings.HasPrefix(got, "no test has changed since ") {
		t.Errorf("it prints %s", got)
	}
	if got := list("-base", "nowhere"); !strings.Contains(got, "give BASE=COMMIT") {
		t.Errorf("it prints %s", got)
	}
}

// TestLoadEnds: the load computes, and ends when it is told to.
func TestLoadEnds(t *testing.T) {
	used := func() int {
		b, err := os.ReadFile("/proc/self/stat")
		if err != nil {
			t.Fatal(err)
		}
		var ticks int
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if _, err := fmt.Sscan(fields[11], &ticks); err != nil {
			t.Fatal(err)
		}
		return ticks
	}
	began := used()
	stop := burn(t.Context(), 2)
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if n := used() - began; n < 5 {
			return fmt.Errorf("%d ticks", n)
		}
		return nil
	})
	stop()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if strings.Contains(string(stacks), "soak.burn.func") || strings.Contains(string(stacks), "main.burn.func") {
			return fmt.Errorf("the load computes on:\n%s", stacks)
		}
		return nil
	})
}
