package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestKeysAreNotWritten holds the rooms that keep what they made: a thing is found
// again by the input that it is made from, or by the hash of its content. The few files
// that do so are here; nobody else puts a key together.
func TestKeysAreNotWritten(t *testing.T) {
	t.Parallel()
	may := map[string][]string{
		"hashes": {"xds/view/hash.go"},
		"finds":  {"xds/view/input.go", "xds/view/mesh_context.go", "xds/cache/memo.go"},
	}
	found := map[string][]string{}
	for _, s := range sources(t) {
		if s.test || !slices.Contains([]string{"xds", "xds/cache", "xds/view"}, s.dir) {
			continue
		}
		path := filepath.ToSlash(s.path)
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, s.path), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		note := func(what string) {
			if !slices.Contains(found[what], path) {
				found[what] = append(found[what], path)
			}
		}
		for _, i := range file.Imports {
			if strings.HasPrefix(i.Path.Value, `"crypto/`) || strings.HasPrefix(i.Path.Value, `"hash`) {
				note("hashes")
			}
			if i.Path.Value == `"weak"` || strings.HasSuffix(i.Path.Value, `/weakmap"`) {
				note("finds")
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				if id, ok := n.Type.(*ast.Ident); ok && id.Name == "encoder" {
					note("hashes")
				}
			case *ast.CallExpr:
				// A pool's Get has no key; a set of resources has a Get, and no Keep.
				sel, ok := n.Fun.(*ast.SelectorExpr)
				if ok && len(n.Args) > 0 && (sel.Sel.Name == "Keep" || sel.Sel.Name == "Get" && s.dir == "xds/view") {
					note("finds")
				}
			}
			return true
		})
	}
	for what, files := range found {
		for _, path := range files {
			if !slices.Contains(may[what], path) {
				t.Errorf("%s %s by itself: have it made from an input (xds/view/input.go, xds/cache/memo.go)", path, what)
			}
		}
	}
	if len(found) != len(may) {
		t.Errorf("only %v was found: the test does not see any more what it is about", found)
	}
}
