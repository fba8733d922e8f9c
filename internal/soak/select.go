package main

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// change is a source file that differs from the base.
type change struct {
	path   string // from the root, with slashes
	source []byte
	lines  []span // in source; nil means all of it
}

// span is lines of a file, both ends included. A span of removed lines is empty: to is before from.
type span struct{ from, to int }

// selected are tests of one package.
type selected struct {
	dir   string   // from the root
	tests []string // by name; nil means all of them
}

// String says what runs, for people.
func (s selected) String() string {
	if s.tests == nil {
		return "./" + s.dir + ": every test"
	}
	return "./" + s.dir + ": " + strings.Join(s.tests, ", ")
}

// selection is sorted by directory.
type selection []selected

// under are the packages whose directory begins with a prefix.
func (s selection) under(prefix string) selection {
	return slices.DeleteFunc(s, func(x selected) bool { return !strings.HasPrefix(x.dir, strings.TrimPrefix(prefix, "./")) })
}

// choose finds the tests that changes touch. importers returns the directories of the packages
// whose tests import the one in dir.
func choose(changes []change, importers func(dir string) ([]string, error)) (selection, error) {
	byName, whole := map[string]map[string]bool{}, map[string]bool{}
	for _, c := range changes {
		dir := path.Dir(c.path)
		file, err := parser.ParseFile(token.NewFileSet(), c.path, c.source, parser.ImportsOnly)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", c.path, err)
		}
		if !strings.HasSuffix(c.path, "_test.go") {
			if !imports(file, "testing") {
				continue
			}
			users, err := importers(dir)
			if err != nil {
				return nil, err
			}
			for _, u := range append(users, dir) {
				whole[u] = true
			}
			continue
		}
		names, helper, err := touched(c)
		if err != nil {
			return nil, err
		}
		if helper {
			whole[dir] = true
		}
		for _, n := range names {
			if byName[dir] == nil {
				byName[dir] = map[string]bool{}
			}
			byName[dir][n] = true
		}
	}
	var out selection
	for dir := range whole {
		out = append(out, selected{dir: dir})
	}
	for dir, names := range byName {
		if !whole[dir] {
			out = append(out, selected{dir, slices.Sorted(maps.Keys(names))})
		}
	}
	slices.SortFunc(out, func(a, b selected) int { return strings.Compare(a.dir, b.dir) })
	return out, nil
}

// touched are the tests of a file that a change is in, and whether it is in something else that
// tests may use. Imports alone change nothing, and what lies between declarations is a comment.
func touched(c change) (tests []string, helper bool, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, c.path, c.source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, false, fmt.Errorf("reading %s: %w", c.path, err)
	}
	for _, d := range file.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			continue
		}
		at := span{set.Position(d.Pos()).Line, set.Position(d.End()).Line}
		if c.lines != nil && !slices.ContainsFunc(c.lines, at.meets) {
			continue
		}
		if f, ok := d.(*ast.FuncDecl); ok && isTest(f) {
			tests = append(tests, f.Name.Name)
		} else if !ok || !isBenchmark(f) {
			helper = true
		}
	}
	return tests, helper, nil
}

// meets reports whether another span has one of the lines. Lines that were removed lie between
// two lines: they are in a span that has both.
func (s span) meets(other span) bool {
	if other.to < other.from {
		return s.from <= other.to && other.from <= s.to
	}
	return s.from <= other.to && other.from <= s.to
}

func isTest(f *ast.FuncDecl) bool {
	return f.Recv == nil && (strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" ||
		strings.HasPrefix(f.Name.Name, "Fuzz") || strings.HasPrefix(f.Name.Name, "Example"))
}

func isBenchmark(f *ast.FuncDecl) bool {
	return f.Recv == nil && strings.HasPrefix(f.Name.Name, "Benchmark")
}

func imports(f *ast.File, pkg string) bool {
	return slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == strconv.Quote(pkg) })
}

// changesSince are the Go files that differ from a commit, with those that git does not know yet.
func changesSince(ctx context.Context, root, from string) ([]change, error) {
	diff, err := git(ctx, root, "diff", "--unified=0", "--no-color", "--no-ext-diff", "--no-renames", "--diff-filter=AM", from, "--", "*.go")
	if err != nil {
		return nil, err
	}
	lines, err := parseDiff(diff)
	if err != nil {
		return nil, err
	}
	unknown, err := git(ctx, root, "ls-files", "--others", "--exclude-standard", "--", "*.go")
	if err != nil {
		return nil, err
	}
	for name := range strings.FieldsSeq(unknown) {
		lines[name] = nil
	}
	var out []change
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			return nil, err
		}
		out = append(out, change{name, source, lines[name]})
	}
	return out, nil
}

// parseDiff reads the lines that a diff without context changes, by file.
func parseDiff(diff string) (map[string][]span, error) {
	out := map[string][]span{}
	name := ""
	header := true // the lines of a hunk may look like one
	for line := range strings.Lines(diff) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "diff --git "):
			header = true
		case header && strings.HasPrefix(line, "+++ b/"):
			name = strings.TrimPrefix(line, "+++ b/")
		case strings.HasPrefix(line, "@@ "):
			header = false
			at, err := hunk(line)
			if err != nil {
				return nil, err
			}
			out[name] = append(out[name], at)
		}
	}
	return out, nil
}

// hunk reads the new lines of "@@ -a,b +c,d @@".
func hunk(line string) (span, error) {
	for f := range strings.FieldsSeq(line) {
		if !strings.HasPrefix(f, "+") {
			continue
		}
		from, count, many := strings.Cut(f[1:], ",")
		a, err := strconv.Atoi(from)
		n := 1
		if many && err == nil {
			n, err = strconv.Atoi(count)
		}
		if err != nil {
			return span{}, fmt.Errorf("reading %q of a diff: %w", line, err)
		}
		if n == 0 { // removed behind line a
			return span{a + 1, a}, nil
		}
		return span{a, a + n - 1}, nil
	}
	return span{}, fmt.Errorf("reading %q of a diff: it has no new lines", line)
}

// importers are the directories of packages in the module of dir whose tests, or other packages
// for tests that these use, import the package there.
func importers(ctx context.Context, root, dir string) ([]string, error) {
	// A line a test binary: its package, and all that it is made of.
	cmd := exec.CommandContext(ctx, "go", "list", "-test", "-f", `{{if .ForTest}}{{.ForTest}}{{range .Deps}} {{.}}{{end}}{{end}}`, "./...")
	cmd.Dir = root
	b, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing packages: %w", err)
	}
	cmd = exec.CommandContext(ctx, "go", "list", "-m")
	cmd.Dir = root
	m, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("reading the module's name: %w", err)
	}
	module := string(bytes.TrimSpace(m)) + "/"
	found := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 0 && slices.Contains(f[1:], module+dir) {
			found[strings.TrimPrefix(f[0], module)] = true
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}
