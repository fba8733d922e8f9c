package codes

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// source is what one file of the product says of codes.
type source struct {
	path     string
	literals []string            // codes that are written as such
	refers   map[string][]string // of names of the register, those that are given to them here
	mentions map[string]int      // of every name in the file
}

// sources are all files of the product but the register.
func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || filepath.Clean(path) == filepath.Join(root, "registry", "codes")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		out = append(out, look(path, f))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var code = regexp.MustCompile(`^FL[0-9]{4}$`)

func look(path string, f *ast.File) source {
	s := source{path: path, refers: map[string][]string{}, mentions: map[string]int{}}
	imports := slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool {
		return strings.HasSuffix(i.Path.Value, `/registry/codes"`)
	})
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && code.MatchString(text) {
				s.literals = append(s.literals, text)
			}
		case *ast.Ident:
			s.mentions[n.Name]++
		case *ast.ValueSpec:
			for i, v := range n.Values {
				if sel, ok := v.(*ast.SelectorExpr); ok && imports {
					if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "codes" {
						s.refers[sel.Sel.Name] = append(s.refers[sel.Sel.Name], n.Names[i].Name)
					}
				}
			}
		}
		return true
	})
	return s
}

// register is the names of this package's constants, with their codes.
func register(t *testing.T) map[string]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			lit, ok := spec.Values[0].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s is not a code that is written out", spec.Names[0].Name)
				return true
			}
			if out[spec.Names[0].Name], err = strconv.Unquote(lit.Value); err != nil {
				t.Error(err)
			}
		}
		return true
	})
	return out
}

// TestEveryCodeHasOneMeaning holds the register against the sources.
func TestEveryCodeHasOneMeaning(t *testing.T) {
	t.Parallel()
	names := register(t)
	if len(names) < 30 {
		t.Fatalf("the register has %d codes: this test looks in the wrong place", len(names))
	}
	all := sources(t)
	for _, p := range problems(names, all) {
		t.Error(p)
	}
}

// problems are what is wrong with codes.
func problems(names map[string]string, all []source) []string {
	var out []string
	byCode := map[string]string{}
	for name, c := range names {
		if !code.MatchString(c) {
			out = append(out, "codes."+name+" is "+strconv.Quote(c)+", which is no code")
		}
		if other := byCode[c]; other != "" {
			out = append(out, c+" is registered twice: codes."+min(name, other)+" and codes."+max(name, other))
		}
		byCode[c] = name
	}
	users := map[string][]string{}
	for _, s := range all {
		for _, c := range s.literals {
			out = append(out, s.path+" writes the code "+c+": give it a name in registry/codes")
		}
		for name, as := range s.refers {
			for _, alias := range as {
				users[name] = append(users[name], s.path)
				used := -1 // where it is declared
				for _, o := range all {
					if filepath.Dir(o.path) == filepath.Dir(s.path) || ast.IsExported(alias) {
						used += o.mentions[alias]
					}
				}
				if used <= 0 {
					out = append(out, s.path+": "+alias+" ("+names[name]+") is reported nowhere: take it out, here and in docs/troubleshooting.md")
				}
			}
		}
	}
	for name, c := range names {
		switch list := users[name]; {
		case len(list) == 0:
			out = append(out, c+" is registered as codes."+name+", and nothing has it")
		case len(list) > 1:
			slices.Sort(list)
			out = append(out, c+" is used twice: "+strings.Join(list, ", "))
		}
	}
	slices.Sort(out)
	return out
}

// TestProblems tries the test on sources in which each rule is broken.
func TestProblems(t *testing.T) {
	t.Parallel()
	file := func(path, text string) source {
		f, err := parser.ParseFile(token.NewFileSet(), path, "package p\nimport \"x/registry/codes\"\n"+text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		return look(path, f)
	}
	for name, c := range map[string]struct {
		names map[string]string
		files []source
		want  string
	}{
		"good":           {map[string]string{"A": "FL0001"}, []source{file("a/a.go", `const CodeA = codes.A; var x = CodeA`)}, ""},
		"value_twice":    {map[string]string{"A": "FL0001", "B": "FL0001"}, []source{file("a/a.go", `const CodeA, CodeB = codes.A, codes.B; var x, y = CodeA, CodeB`)}, "FL0001 is registered twice: codes.A and codes.B"},
		"used_twice":     {map[string]string{"A": "FL0001"}, []source{file("a/a.go", `const CodeA = codes.A; var x = CodeA`), file("b/b.go", `const CodeB = codes.A; var x = CodeB`)}, "FL0001 is used twice: a/a.go, b/b.go"},
		"not_registered": {map[string]string{"A": "FL0001"}, []source{file("a/a.go", `const CodeA = codes.A; var x, y = CodeA, "FL0002"`)}, "a/a.go writes the code FL0002: give it a name in registry/codes"},
		"not_used":       {map[string]string{"A": "FL0001", "B": "FL0002"}, []source{file("a/a.go", `const CodeA = codes.A; var x = CodeA`)}, "FL0002 is registered as codes.B, and nothing has it"},
		"not_reported":   {map[string]string{"A": "FL0001"}, []source{file("a/a.go", `const CodeA = codes.A`)}, "a/a.go: CodeA (FL0001) is reported nowhere: take it out, here and in docs/troubleshooting.md"},
		"no_code":        {map[string]string{"A": "FLX"}, []source{file("a/a.go", `const CodeA = codes.A; var x = CodeA`)}, `codes.A is "FLX", which is no code`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := strings.Join(problems(c.names, c.files), "\n"); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestLimitsAreWhole: a code that stands among those of limits, or with which something is refused for
// its size, is one of Limits.
func TestLimitsAreWhole(t *testing.T) {
	t.Parallel()
	f, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, d := range f.Decls {
		block, ok := d.(*ast.GenDecl)
		if !ok || !strings.Contains(block.Doc.Text(), "[Limits]") {
			continue
		}
		for _, spec := range block.Specs {
			if spec, ok := spec.(*ast.ValueSpec); ok {
				lit, _ := spec.Values[0].(*ast.BasicLit)
				text, _ := strconv.Unquote(lit.Value)
				want = append(want, text)
			}
		}
	}
	if len(want) < 4 || !slices.Equal(want, Limits()) {
		t.Errorf("limits are %v, want %v", Limits(), want)
	}
	// Limits of one object are added as "refused: …" in package manifest.
	refused, names, found := regexp.MustCompile(`\.add\((Code\w+), .*"refused: `), register(t), 0
	paths, err := filepath.Glob(filepath.Join(root, "registry", "manifest", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range refused.FindAllStringSubmatch(string(text), -1) {
			found++
			if c := names[strings.TrimPrefix(m[1], "Code")]; !slices.Contains(Limits(), c) {
				t.Errorf("%s refuses with %s (%s), which is none of the limits", path, m[1], c)
			}
		}
	}
	if found < 2 {
		t.Errorf("%d refusals found", found)
	}
}
