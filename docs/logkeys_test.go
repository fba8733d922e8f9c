package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestLogKeys compares the keys of log lines in ARCHITECTURE.md with the sources: a key that two
// packages use is on the list, and each key on the list is used.
func TestLogKeys(t *testing.T) {
	t.Parallel()
	_, section, ok := strings.Cut(read(t, filepath.Join(root, "ARCHITECTURE.md")), "\n## Keys of log lines\n")
	if !ok {
		t.Fatal("ARCHITECTURE.md has no keys of log lines")
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(section, -1) {
		listed[m[1]] = true
	}
	used := map[string][]string{} // packages by key
	for _, path := range files(t, ".go") {
		dir, _ := filepath.Rel(root, filepath.Dir(path))
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(dir, "internal") || strings.HasPrefix(dir, "bench") || strings.HasPrefix(dir, "examples") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			for _, key := range keysOf(n) {
				if !slices.Contains(used[key], dir) {
					used[key] = append(used[key], dir)
				}
			}
			return true
		})
	}
	for key, dirs := range used {
		if len(dirs) > 1 && !listed[key] {
			t.Errorf("ARCHITECTURE.md does not list the key %q of log lines, which %v use", key, dirs)
		}
	}
	for key := range listed {
		if len(used[key]) == 0 {
			t.Errorf("ARCHITECTURE.md lists the key %q of log lines, which nothing uses", key)
		}
	}
}

// keysOf are the keys of log lines that a node of a source has: in a call of a logger, and in a
// list of values for one.
func keysOf(n ast.Node) []string {
	var args []ast.Expr
	switch n := n.(type) {
	case *ast.CallExpr:
		sel, ok := n.Fun.(*ast.SelectorExpr)
		if !ok {
			return nil
		}
		first := map[string]int{
			"With": 0, "Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "DebugContext": 2, "InfoContext": 2, "WarnContext": 2, "ErrorContext": 2, "Log": 3,
		}
		at, ok := first[sel.Sel.Name]
		if !ok || len(n.Args) < at+2 {
			return nil
		}
		args = n.Args[at:]
	case *ast.CompositeLit:
		list, ok := n.Type.(*ast.ArrayType)
		if !ok {
			return nil
		}
		if of, ok := list.Elt.(*ast.Ident); !ok || of.Name != "any" || len(n.Elts)%2 != 0 {
			return nil
		}
		args = n.Elts
	}
	var out []string
	for i := 0; i+1 < len(args); i += 2 {
		lit, ok := args[i].(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return out
		}
		if key, err := strconv.Unquote(lit.Value); err == nil && strings.Trim(key, "abcdefghijklmnopqrstuvwxyz_") == "" {
			out = append(out, key)
		}
	}
	return out
}
