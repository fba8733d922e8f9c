package cache

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// TestInputsHaveExportedFieldsOnly checks every cache: only exported fields are in a hash,
// so an input has no others. It finds the inputs by reflection.
func TestInputsHaveExportedFieldsOnly(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	structs, inputs := map[string]*ast.StructType{}, map[string]bool{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					structs[n.Name.Name] = s
				}
			case *ast.FuncDecl:
				if n.Recv == nil || n.Name.Name != "build" {
					break
				}
				of, ok := n.Recv.List[0].Type.(*ast.Ident)
				if !ok {
					t.Errorf("%s: an input is a value", e.Name())
					break
				}
				inputs[of.Name] = true
			}
			return true
		})
	}
	if len(inputs) < 5 {
		t.Errorf("%d inputs are too few: the test does not find them any more", len(inputs))
	}
	for name := range inputs {
		s := structs[name]
		if s == nil {
			t.Errorf("%s is no struct", name)
			continue
		}
		for _, f := range s.Fields.List {
			if len(f.Names) == 0 {
				t.Errorf("%s: an embedded field is not seen to be exported: name it", name)
			}
			for _, id := range f.Names {
				if !id.IsExported() {
					t.Errorf("%s.%s is not in the hash of the input", name, id.Name)
				}
			}
		}
	}
}
