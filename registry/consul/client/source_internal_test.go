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
func TestNoTextOfAnErrorDecides(t *testing.T) {
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
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && inPackage(call.Fun, "strings") {
				for _, arg := range call.Args {
					if inner, ok := arg.(*ast.CallExpr); ok && isErrorText(inner) {
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

func isErrorText(call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Error" && len(call.Args) == 0
}
