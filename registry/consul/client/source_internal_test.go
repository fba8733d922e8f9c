package client

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// What an error means is decided by its type or by the status of an answer, never
// by its text, which the next version of a library may change.
func TestErrorTextIsNotMatched(t *testing.T) {
	t.Parallel()
	files := token.NewFileSet()
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		texts := map[string]bool{} // variables with the text of an error
		ast.Inspect(file, func(n ast.Node) bool {
			if set, ok := n.(*ast.AssignStmt); ok && len(set.Lhs) == 1 && len(set.Rhs) == 1 && isErrorText(set.Rhs[0], nil) {
				if x, ok := set.Lhs[0].(*ast.Ident); ok {
					texts[x.Name] = true
				}
			}
			if call, ok := n.(*ast.CallExpr); ok && inPackage(call.Fun, "strings") {
				for _, arg := range call.Args {
					if isErrorText(arg, texts) {
						t.Errorf("%s: the text of an error is looked into", files.Position(call.Pos()))
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func inPackage(fun ast.Expr, name string) bool {
	s, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == name
}

// isErrorText reports whether x is a call of Error, or one of the variables.
func isErrorText(x ast.Expr, variables map[string]bool) bool {
	if id, ok := x.(*ast.Ident); ok {
		return variables[id.Name]
	}
	call, ok := x.(*ast.CallExpr)
	if !ok || len(call.Args) > 0 {
		return false
	}
	s, ok := call.Fun.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Error"
}
