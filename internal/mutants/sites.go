package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The shapes that are looked for.
var (
	// lookups are the generic types, and the map type, that find something by a key.
	lookups = regexp.MustCompile(`^(Map|memo|hints|persistentMap)$`)
	// changeTypes describe what changed. A function with one in its signature is a step
	// that finds what is affected.
	changeTypes = regexp.MustCompile(`^(resourcesContext|indexDiff|affectedProxies|Delta|Diff|Difference|healthPass|restricter|partFinder)$`)
	// prevParams are the names of parameters with a previous value.
	prevParams = regexp.MustCompile(`^(prev|was|before|had|old|last)$`)
	// keyFuncs return keys.
	keyFuncs = regexp.MustCompile(`^(key|keyOf|content|text|textOf|hash|hashOf|origin|relevant)$|Hash$|Key$`)
	// unsafe are calls without which nothing runs, or nothing ends.
	unsafe = regexp.MustCompile(`^(Lock|Unlock|RLock|RUnlock|panic|Add|Store|Done|Wait|close)$`)
)

// site is one place at which the code is mutated.
type site struct {
	ID   int
	File string // below the module's root
	Line int
	Func string
	What string // what is removed
	Text string // the source text
}

// name identifies the site from one run to the next.
func (s *site) name() string { return s.File + " " + s.Func + ": " + s.What + " " + s.Text }

// insert is a text that is inserted into a file.
type insert struct {
	at    int
	text  string
	close bool // it ends a site; inner sites end first
	order int
}

// finder finds the sites of one package.
type finder struct {
	root, dir string
	fset      *token.FileSet
	types     map[string]bool // of which literals are keys or changes
	next      *int
	sites     []*site

	file    string
	src     []byte
	fn      string
	inserts []insert
}

// find returns the sites of a package, and its files with their switches.
func find(root, dir string, next *int) (sites []*site, files map[string][]byte, err error) {
	f := &finder{root: root, dir: dir, fset: token.NewFileSet(), types: map[string]bool{}, next: next}
	paths, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		return nil, nil, err
	}
	parsed := map[string]*ast.File{}
	for _, p := range paths {
		if strings.HasSuffix(p, "_test.go") {
			continue
		}
		if parsed[p], err = parser.ParseFile(f.fset, p, nil, parser.SkipObjectResolution); err != nil {
			return nil, nil, err
		}
		f.keyTypes(parsed[p])
	}
	files = map[string][]byte{}
	for _, p := range paths {
		file := parsed[p]
		if file == nil {
			continue
		}
		if f.src, err = os.ReadFile(p); err != nil {
			return nil, nil, err
		}
		f.file, f.inserts = filepath.ToSlash(filepath.Join(dir, filepath.Base(p))), nil
		for _, d := range file.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				f.function(fn)
			}
		}
		if len(f.inserts) > 0 {
			files[p] = f.switched()
		}
	}
	return f.sites, files, nil
}

// keyTypes collects the types that are used as keys.
func (f *finder) keyTypes(file *ast.File) {
	note := func(e ast.Expr) {
		if id, ok := e.(*ast.Ident); ok {
			f.types[id.Name] = true
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IndexListExpr:
			if id, ok := n.X.(*ast.Ident); ok && lookups.MatchString(id.Name) {
				note(n.Indices[0])
			}
		case *ast.MapType:
			note(n.Key)
		case *ast.FuncDecl: // an input, by which is found what it builds
			if n.Name.Name == "build" && n.Recv != nil {
				note(n.Recv.List[0].Type)
			}
		}
		return true
	})
}

// function looks at one function.
func (f *finder) function(fn *ast.FuncDecl) {
	f.fn = fn.Name.Name
	if fn.Recv != nil && len(fn.Recv.List) > 0 {
		f.fn = typeName(fn.Recv.List[0].Type) + "." + f.fn
	}
	rules := ruleFiles.MatchString(f.file)
	step := keyFuncs.MatchString(fn.Name.Name) || writesKey(fn) || isStep(fn) || isComparison(fn)
	if step || rules {
		f.statements(fn.Body)
		f.conditions(fn.Body)
	}
	f.literals(fn.Body, step)
	if rules {
		f.rules(fn)
	}
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.ArrayType:
		return typeName(e.Elt)
	case *ast.Ellipsis:
		return typeName(e.Elt)
	default:
		return ""
	}
}

// writesKey reports whether a function writes a text that is compared with others.
func writesKey(fn *ast.FuncDecl) bool {
	found := false
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if lit, ok := n.(*ast.CompositeLit); ok && lit.Type != nil && typeName(lit.Type) == "encoder" {
			found = true
		}
		return true
	})
	return found
}

func fields(list ...*ast.FieldList) []*ast.Field {
	var out []*ast.Field
	for _, l := range list {
		if l != nil {
			out = append(out, l.List...)
		}
	}
	return out
}

// isStep reports whether a function handles changes, or takes over previous values.
func isStep(fn *ast.FuncDecl) bool {
	for _, field := range fields(fn.Recv, fn.Type.Params, fn.Type.Results) {
		if changeTypes.MatchString(typeName(field.Type)) {
			return true
		}
		if slices.ContainsFunc(field.Names, func(n *ast.Ident) bool { return prevParams.MatchString(n.Name) }) {
			return true
		}
	}
	return false
}

// isComparison reports whether a function compares two values of a type.
func isComparison(fn *ast.FuncDecl) bool {
	if fn.Type.Results == nil || len(fn.Type.Results.List) != 1 || typeName(fn.Type.Results.List[0].Type) != "bool" {
		return false
	}
	count := map[string]int{}
	for _, field := range fields(fn.Recv, fn.Type.Params) {
		count[typeName(field.Type)] += max(1, len(field.Names))
	}
	delete(count, "")
	for _, n := range count {
		if n > 1 {
			return true
		}
	}
	return false
}

// add adds the source between two positions as a site. before and after are inserted around
// it; before has the number of the switch as its only %d.
func (f *finder) add(n ast.Node, what, before, after string) {
	*f.next++
	from, to := f.fset.Position(n.Pos()).Offset, f.fset.Position(n.End()).Offset
	text := strings.Join(strings.Fields(string(f.src[from:to])), " ")
	if len(text) > 90 {
		text = text[:87] + "..."
	}
	f.sites = append(f.sites, &site{ID: *f.next, File: f.file, Line: f.fset.Position(n.Pos()).Line, Func: f.fn, What: what, Text: text})
	f.inserts = append(f.inserts,
		insert{at: from, text: fmt.Sprintf(before, *f.next), order: to - from},
		insert{at: to, text: after, close: true, order: to - from})
}

// statements are removed one by one, loops as a whole and in their parts.
func (f *finder) statements(body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		var list []ast.Stmt
		switch n := n.(type) {
		case *ast.BlockStmt:
			list = n.List
		case *ast.CaseClause:
			list = n.Body
		default:
			return true
		}
		for _, s := range list {
			if removable(s) {
				f.add(s, "statement", "if mutantOff(%d) { ", " }")
			}
		}
		return true
	})
}

func removable(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		return ok && !unsafe.MatchString(callee(call))
	case *ast.AssignStmt:
		return s.Tok != token.DEFINE
	case *ast.IncDecStmt:
		return true
	case *ast.RangeStmt:
		return true
	default:
		return false
	}
}

func callee(c *ast.CallExpr) string {
	switch fn := c.Fun.(type) {
	case *ast.SelectorExpr:
		return fn.Sel.Name
	case *ast.Ident:
		return fn.Name
	default:
		return ""
	}
}

// conditions lose one operand at a time, and branches are never taken.
func (f *finder) conditions(body *ast.BlockStmt) {
	var operands func(e ast.Expr, op token.Token)
	operands = func(e ast.Expr, op token.Token) {
		if b, ok := ast.Unparen(e).(*ast.BinaryExpr); ok && b.Op == op {
			operands(b.X, op)
			operands(b.Y, op)
			return
		}
		if op == token.LAND {
			f.add(e, "condition of &&", "(!mutantOff(%d) || (", "))")
		} else {
			f.add(e, "condition of ||", "(mutantOff(%d) && (", "))")
		}
	}
	inner := map[ast.Node]bool{} // of a chain that was looked at from its top
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			f.add(n.Cond, "branch", "mutantOff(%d) && (", ")")
		case *ast.CaseClause:
			for _, e := range n.List {
				if isCondition(e) {
					f.add(e, "case", "mutantOff(%d) && (", ")")
				}
			}
		case *ast.BinaryExpr:
			if (n.Op == token.LAND || n.Op == token.LOR) && !inner[n] {
				chain(n, n.Op, inner)
				operands(n, n.Op)
			}
		}
		return true
	})
}

func chain(e ast.Expr, op token.Token, inner map[ast.Node]bool) {
	if b, ok := ast.Unparen(e).(*ast.BinaryExpr); ok && b.Op == op {
		inner[b] = true
		chain(b.X, op, inner)
		chain(b.Y, op, inner)
	}
}

// isCondition reports whether the case of a switch is a condition, and not a value.
func isCondition(e ast.Expr) bool {
	switch e := ast.Unparen(e).(type) {
	case *ast.BinaryExpr:
		return slices.Contains([]token.Token{token.LAND, token.LOR, token.EQL, token.NEQ, token.LSS, token.GTR, token.LEQ, token.GEQ}, e.Op)
	case *ast.UnaryExpr:
		return e.Op == token.NOT
	default:
		return false
	}
}

// literals lose fields of keys; in steps, also fields of results.
func (f *finder) literals(body *ast.BlockStmt, step bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if !ok || lit.Type == nil {
			return true
		}
		name, isIdent := lit.Type.(*ast.Ident)
		if !isIdent || !f.types[name.Name] && (!step || !changeTypes.MatchString(name.Name)) {
			return true
		}
		for _, e := range lit.Elts {
			what := "field of " + name.Name
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				if key, ok := kv.Key.(*ast.Ident); ok {
					what = "field " + name.Name + "." + key.Name
				}
				e = kv.Value
			}
			switch x := e.(type) {
			case *ast.BasicLit, *ast.CompositeLit, *ast.FuncLit:
				continue
			case *ast.Ident:
				if x.Name == "nil" || x.Name == "true" || x.Name == "false" {
					continue
				}
			}
			f.add(e, what, "mutantZero(%d, ", ")")
		}
		return true
	})
}

// switched is the file with all its switches.
func (f *finder) switched() []byte {
	slices.SortStableFunc(f.inserts, func(a, b insert) int {
		switch {
		case a.at != b.at:
			return a.at - b.at
		case a.close != b.close: // what ends here, ends before the next begins
			if a.close {
				return -1
			}
			return 1
		case a.close:
			return a.order - b.order // the inner one ends first
		default:
			return b.order - a.order // the outer one begins first
		}
	})
	var out bytes.Buffer
	at := 0
	for _, i := range f.inserts {
		out.Write(f.src[at:i.at])
		out.WriteString(i.text)
		at = i.at
	}
	out.Write(f.src[at:])
	return out.Bytes()
}

// switches is a file that is added to a package. With no switch set, it records which sites
// were executed.
func switches(pkg string) []byte {
	return []byte("package " + pkg + `

import (
	"os"
	"strconv"
	"sync"
)

var mutantOn, _ = strconv.Atoi(os.Getenv("FAIRLEAD_MUTANT"))

var mutantSeen sync.Map

var mutantTrace, _ = os.OpenFile(os.Getenv("FAIRLEAD_MUTANT_TRACE"), os.O_APPEND|os.O_WRONLY, 0)

func mutantOff(id int) bool {
	if mutantTrace != nil {
		if _, seen := mutantSeen.LoadOrStore(id, true); !seen {
			mutantTrace.WriteString(strconv.Itoa(id) + "\n")
		}
	}
	return id != mutantOn
}

func mutantZero[T any](id int, v T) T {
	if !mutantOff(id) {
		var zero T
		return zero
	}
	return v
}
`)
}
