package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestWalksNameFunctionsThatExist looks for each function of the walks of
// ARCHITECTURE.md in the package that its step names.
func TestWalksNameFunctionsThatExist(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(content), "\n## From source to bytes, twice\n")
	text, _, more := strings.Cut(text, "\n## ")
	if !ok || !more {
		t.Fatal("ARCHITECTURE.md has no walks")
	}
	step, quoted := regexp.MustCompile("^[0-9]+\\. `([a-z/]+)`: "), regexp.MustCompile("`([A-Za-z.]+)`")
	walks := strings.Split(text, "\n### ")[1:]
	if len(walks) != 2 {
		t.Errorf("%d walks, want 2", len(walks))
	}
	for _, walk := range walks {
		title, body, _ := strings.Cut(walk, "\n")
		steps, names := 0, 0
		for line := range strings.Lines(body) {
			m := step.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			steps++
			declared := functions(t, filepath.Join("..", m[1]))
			for _, q := range quoted.FindAllStringSubmatch(line[len(m[0]):], -1) {
				names++
				if !declared[q[1]] {
					t.Errorf("%s, step %d: %s has no function %s", title, steps, m[1], q[1])
				}
			}
		}
		if steps < 5 || steps > 15 || names < steps {
			t.Errorf("%s: %d steps that name %d functions, want 5 to 15 steps, each with one at least", title, steps, names)
		}
	}
}

// TestFaultsNameTestsThatExist looks for each test that the pages of faults name. Each row of
// their tables names one.
func TestFaultsNameTestsThatExist(t *testing.T) {
	t.Parallel()
	for page, c := range map[string]struct {
		dirs []string
		rows int // at least
	}{
		"faults.md":         {[]string{"../internal/e2e/*", "../cmd/fairlead/internal/server", "../cmd/fairlead", "../agent/dns"}, 20},
		"capture-faults.md": {[]string{"../agent/capture", "../agent/capture/keeper", "../internal/e2e/capture", "../xds/envoy", "../xds/view", "../registry/analysis", "../cmd/fairlead"}, 35},
	} {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		declared, rows := tests(t, c.dirs), 0
		for line := range strings.Lines(string(content)) {
			if !strings.HasPrefix(line, "| ") || !strings.HasSuffix(line, "|\n") {
				continue
			}
			named := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(line, -1)
			for _, m := range named {
				if !declared[m[1]] {
					t.Errorf("%s: there is no test %s", page, m[1])
				}
			}
			if len(named) > 0 {
				rows++
			} else if page == "capture-faults.md" && !strings.HasSuffix(line, "| Test |\n") {
				t.Errorf("%s: a row without a test: %s", page, line)
			}
		}
		if rows < c.rows {
			t.Errorf("%s: only %d rows name tests", page, rows)
		}
	}
}

// tests are those of directories, by name.
func tests(t *testing.T, dirs []string) map[string]bool {
	t.Helper()
	declared := map[string]bool{}
	test := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, dir := range dirs {
		paths, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil || len(paths) == 0 {
			t.Fatalf("no tests in %s: %v", dir, err)
		}
		for _, p := range paths {
			source, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range test.FindAllStringSubmatch(string(source), -1) {
				declared[m[1]] = true
			}
		}
	}
	return declared
}

// functions are those of a package, methods as Type.Method.
func functions(t *testing.T, dir string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s has no sources: %v", dir, err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name := fn.Name.Name
			if fn.Recv != nil {
				receiver := fn.Recv.List[0].Type
				if star, ok := receiver.(*ast.StarExpr); ok {
					receiver = star.X
				}
				if id, ok := receiver.(*ast.Ident); ok {
					name = id.Name + "." + name
				}
			}
			out[name] = true
		}
	}
	return out
}
