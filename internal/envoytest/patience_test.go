package envoytest

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDeadlinesHaveNames reads all sources of tests: no call of an Eventually has a
// number for its deadline, and no client or connection of a test. It is [Patience],
// [Attempt], or a constant whose comment says what a shorter wait separates from a
// longer one.
func TestDeadlinesHaveNames(t *testing.T) {
	t.Parallel()
	root := ModuleRoot(t)
	calls := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !d.Type().IsRegular() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(source, []byte(`"testing"`)) && !bytes.Contains(source, []byte("Eventually(")) {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, source, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if at := timeoutOf(n); at != nil && hasNumberOfSeconds(at) {
				t.Errorf("%s: how long it may take is a number: write Attempt, or name what a shorter time separates from a longer one", set.Position(at.Pos()))
			}
			call, ok := n.(*ast.CallExpr)
			if !ok || !isEventually(call.Fun) {
				return true
			}
			calls++
			for _, arg := range call.Args[:len(call.Args)-1] {
				if hasNumberOfSeconds(arg) {
					t.Errorf("%s: the deadline is a number: write Patience, unless the deadline itself is what the test asserts; then name it", set.Position(call.Pos()))
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if calls < 100 {
		t.Errorf("only %d calls were found", calls)
	}
}

// timeoutOf is the time that a client, a dialer or a connection of a test has, or nil.
func timeoutOf(n ast.Node) ast.Expr {
	switch x := n.(type) {
	case *ast.CompositeLit:
		of, ok := x.Type.(*ast.SelectorExpr)
		if !ok || of.Sel.Name != "Client" && of.Sel.Name != "Dialer" {
			return nil
		}
		for _, e := range x.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				if key, ok := kv.Key.(*ast.Ident); ok && key.Name == "Timeout" {
					return kv.Value
				}
			}
		}
	case *ast.CallExpr:
		// SetDeadline(time.Now().Add(TIME))
		if f, ok := x.Fun.(*ast.SelectorExpr); ok && len(x.Args) == 1 && strings.HasSuffix(f.Sel.Name, "Deadline") {
			if add, ok := x.Args[0].(*ast.CallExpr); ok && len(add.Args) == 1 {
				return add.Args[0]
			}
		}
	}
	return nil
}

func isEventually(fun ast.Expr) bool {
	switch f := fun.(type) {
	case *ast.Ident:
		return f.Name == "Eventually"
	case *ast.SelectorExpr:
		return f.Sel.Name == "Eventually"
	default:
		return false
	}
}

// hasNumberOfSeconds reports whether an expression uses package time itself.
func hasNumberOfSeconds(arg ast.Expr) bool {
	found := false
	ast.Inspect(arg, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" {
				found = true
			}
		}
		return true
	})
	return found
}
