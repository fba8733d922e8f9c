package metakeys

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

var (
	// qualified is the form of keys with a domain.
	qualified = regexp.MustCompile(`^([a-z0-9-]+\.)+[a-z]+/[A-Za-z0-9._-]*$`)
	// aVersion is an apiVersion, which has the same form.
	aVersion = regexp.MustCompile(`/v\d\w*$`)
	// keyed is the name of a map of labels, annotations, metadata or tagged addresses.
	keyed = regexp.MustCompile(`(?i)(labels|annotations|meta|taggedaddresses)$`)
)

// notKeys are texts of the form of keys that are none.
var notKeys = map[string]string{
	"fairlead.io/none": "a tag that nothing has",
}

// readers are functions that are given keys, by package and name: where in their arguments the first
// and the last one are; a last of -1 is the last argument.
var readers = map[string][2]int{"mapping.claim": {2, 2}, "mesh.label": {0, -1}, "view.comparedValue": {0, 0}}

// anyKey are the functions, by package and name, that use a key which an object or a caller names.
var anyKey = map[string]string{
	"analysis.add":           "labels of a selector",
	"analysis.chosen":        "labels of a workload",
	"analysis.labelText":     "labels as text",
	"analysis.narrower":      "labels of a selector",
	"analysis.nearLabels":    "labels of a selector",
	"bootstrap.Proto":        "labels of a node, all of them",
	"bootstrap.SetMetadata":  "writes constants",
	"bootstrap.check":        "labels of a node, all of them",
	"bootstrap.labelsField":  "labels of a node, all of them",
	"envoy.openTelemetryLog": "attributes of a log",
	"lastgood.count":         "labels of a selector",
	"lastgood.withSelected":  "labels of workloads, all of them",
	"main.proxy":             "labels of --labels",
	"manifest.Consequence":   "labels as text",
	"mapping.choose":         "the kinds of addresses, which are declared",
	"mapping.claim":          "a reader",
	"mesh.Reported":          "has the reader label",
	"mesh.Selects":           "labels of a selector",
	"metrics.cutBound":       "labels of metrics",
	"metrics.overflowRow":    "labels of metrics",
	"view.comparedValue":     "a reader; also names in failoverPriority",
	"view.contradict":        "labels of a match",
	"view.indexPolicies":     "labels of a selector",
	"view.labelText":         "labels as text",
	"view.locationFor":       "names in failoverPriority",
	"view.nearLabels":        "labels of a selector",
	"view.rank":              "names in failoverPriority",
	"webhook.whyNotLabels":   "labels of a DNS name",
}

// product are the files of the binary, by package.
func product(t *testing.T) (*token.FileSet, map[string][]*ast.File) {
	t.Helper()
	fset, out := token.NewFileSet(), map[string][]*ast.File{}
	for _, dir := range []string{"agent", "cmd", "pki", "registry", "xds"} {
		if err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return filepath.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err == nil {
				out[f.Name.Name] = append(out[f.Name.Name], f)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return fset, out
}

// constants are the values of the constants of texts, by package and name, as far as a key can be one.
type constants map[string]string

func (c constants) of(pkg string, e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		v, err := strconv.Unquote(e.Value)
		return v, err == nil && e.Kind == token.STRING
	case *ast.Ident:
		v, ok := c[pkg+"."+e.Name]
		return v, ok
	case *ast.SelectorExpr:
		x, ok := e.X.(*ast.Ident)
		if !ok {
			return "", false
		}
		v, ok := c[x.Name+"."+e.Sel.Name]
		return v, ok
	case *ast.BinaryExpr:
		a, ok := c.of(pkg, e.X)
		b, ok2 := c.of(pkg, e.Y)
		return a + b, ok && ok2 && e.Op == token.ADD
	case *ast.ParenExpr:
		return c.of(pkg, e.X)
	}
	return "", false
}

func constantsOf(packages map[string][]*ast.File) constants {
	out := constants{}
	for before := -1; before != len(out); { // one may be made of others
		before = len(out)
		for pkg, files := range packages {
			for _, f := range files {
				ast.Inspect(f, func(n ast.Node) bool {
					if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Names) == len(spec.Values) {
						for i, name := range spec.Names {
							if v, ok := out.of(pkg, spec.Values[i]); ok {
								out[pkg+"."+name.Name] = v
							}
						}
					}
					return true
				})
			}
		}
	}
	return out
}

// nameOf is the last name in an expression: Labels in w.Labels, and in p.GetLabels().
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.CallExpr:
		return nameOf(e.Fun)
	}
	return ""
}

// loopsOver are the variables of loops over texts that are written there, with the texts.
func loopsOver(decl ast.Decl) map[string][]ast.Expr {
	out := map[string][]ast.Expr{}
	ast.Inspect(decl, func(n ast.Node) bool {
		if r, ok := n.(*ast.RangeStmt); ok {
			v, named := r.Value.(*ast.Ident)
			if list, ok := r.X.(*ast.CompositeLit); ok && named {
				out[v.Name] = list.Elts
			}
		}
		return true
	})
	return out
}

// TestEachKeyIsDeclared: no key is read that All does not have.
func TestEachKeyIsDeclared(t *testing.T) {
	t.Parallel()
	declared := map[string]bool{ConsulPrefix: true}
	for _, k := range All() {
		declared[k.Name] = true
	}
	fset, packages := product(t)
	values := constantsOf(packages)
	reads, used, unused := 0, map[string]bool{}, map[string]bool{}
	for pkg, files := range packages {
		for _, f := range files {
			for _, imp := range f.Imports {
				if p, _ := strconv.Unquote(imp.Path.Value); p == "istio.io/api/label" || p == "istio.io/api/annotation" {
					t.Errorf("%s: names of labels and annotations are those of package metakeys", fset.Position(imp.Pos()))
				}
			}
			for _, decl := range f.Decls {
				name := pkg
				if fn, ok := decl.(*ast.FuncDecl); ok {
					name += "." + fn.Name.Name
				}
				loops := loopsOver(decl)
				ast.Inspect(decl, func(n ast.Node) bool {
					var check func(ast.Expr) bool
					check = func(e ast.Expr) bool {
						if x, ok := e.(*ast.Ident); ok && loops[x.Name] != nil {
							all := true
							for _, e := range loops[x.Name] {
								all = check(e) && all
							}
							return all
						}
						v, ok := values.of(pkg, e)
						if ok && !declared[v] {
							t.Errorf("%s: the key %q has a meaning and is not declared: add it to metakeys.All, and a row to registry/tenantrules", fset.Position(e.Pos()), v)
						}
						return ok
					}
					switch n := n.(type) {
					case *ast.ImportSpec:
						return false
					case *ast.BasicLit:
						v, _ := strconv.Unquote(n.Value)
						if n.Kind == token.STRING && pkg != "metakeys" && qualified.MatchString(v) && !aVersion.MatchString(v) && !strings.HasPrefix(v, "type.googleapis.com/") {
							if unused[v] = true; notKeys[v] == "" {
								t.Errorf("%s: %q looks like the name of an annotation or label: take it from package metakeys", fset.Position(n.Pos()), v)
							}
						}
					case *ast.CallExpr:
						if of, ok := readers[pkg+"."+nameOf(n.Fun)]; ok {
							last := of[1]
							if last < 0 {
								last = len(n.Args) - 1
							}
							for _, arg := range n.Args[of[0] : last+1] {
								check(arg)
							}
						}
					case *ast.IndexExpr:
						if !keyed.MatchString(nameOf(n.X)) {
							return true
						}
						reads++
						if !check(n.Index) {
							if used[name] = true; anyKey[name] == "" {
								t.Errorf("%s: %s reads a key that is no constant: is it declared? Add the function to anyKey, or to readers, with the reason", fset.Position(n.Pos()), name)
							}
						}
					}
					return true
				})
			}
		}
	}
	if reads < 30 {
		t.Fatalf("%d reads of keys were found", reads)
	}
	for name := range anyKey {
		if !used[name] {
			t.Errorf("%s reads no key", name)
		}
	}
	for text := range notKeys {
		if !unused[text] {
			t.Errorf("%q is nowhere", text)
		}
	}
}

// TestAllHasEachConstant: a key that is declared has a place.
func TestAllHasEachConstant(t *testing.T) {
	t.Parallel()
	_, packages := product(t)
	all := All()
	names, n := map[string]bool{}, 0
	for _, k := range all {
		names[k.Name] = true
		if slices.Index(all, k) != n {
			t.Errorf("%s is there twice", k)
		}
		n++
	}
	own := constantsOf(map[string][]*ast.File{"metakeys": packages["metakeys"]})
	for _, k := range all {
		names[string(k.Place)] = true
	}
	for name, value := range own {
		if !names[value] && value != ConsulPrefix {
			t.Errorf("%s is not in All", name)
		}
	}
	if len(own) < 40 {
		t.Errorf("%d constants", len(own))
	}
}
