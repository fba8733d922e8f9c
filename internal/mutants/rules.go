package main

import (
	"go/ast"
	"go/token"
	"regexp"
)

// ruleFiles are files with rules for users: what a Gateway, a network or a credential means. In
// these each decision is a site, not only those about what is kept.
var ruleFiles = regexp.MustCompile(`/([a-z_]*gateway[a-z_]*|networks?|network_findings|meshnetworks|locality|sni|server_names|dynamic_dns|http3|credential|file_secrets|route_claims)\.go$|^agent/credential/`)

// rules finds the sites of a function of such a file, besides those of a step.
func (f *finder) rules(fn *ast.FuncDecl) {
	f.branches(fn.Body)
	f.results(fn.Type, fn.Body)
	f.values(fn.Body)
}

// branches are always taken; those of a switch without a tag also never.
func (f *finder) branches(body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			f.add(n.Cond, "branch always", "(!mutantOff(%d) || (", "))")
		case *ast.SwitchStmt:
			for _, clause := range n.Body.List {
				for _, e := range clause.(*ast.CaseClause).List {
					f.caseOf(n.Tag, e)
				}
			}
		}
		return true
	})
}

// caseOf is one case of a switch: a condition, or a value that loses its meaning.
func (f *finder) caseOf(tag, e ast.Expr) {
	switch e.(type) {
	case *ast.SelectorExpr, *ast.Ident:
		if tag != nil {
			f.add(e, "case value", "mutantZero(%d, ", ")")
			return
		}
	}
	if tag != nil {
		return
	}
	f.add(e, "case always", "(!mutantOff(%d) || (", "))")
	if !isCondition(e) {
		f.add(e, "case", "mutantOff(%d) && (", ")")
	}
}

// results of functions that answer yes or no are the same each time.
func (f *finder) results(t *ast.FuncType, body *ast.BlockStmt) {
	isBool := t.Results != nil && len(t.Results.List) == 1 && len(t.Results.List[0].Names) == 0 && typeName(t.Results.List[0].Type) == "bool"
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			f.results(n.Type, n.Body)
			return false
		case *ast.ReturnStmt:
			if isBool && len(n.Results) == 1 && !isConstant(n.Results[0]) {
				f.add(n.Results[0], "result true", "(!mutantOff(%d) || (", "))")
				f.add(n.Results[0], "result false", "(mutantOff(%d) && (", "))")
			}
		}
		return true
	})
}

func isConstant(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && (id.Name == "true" || id.Name == "false" || id.Name == "nil")
}

// values of the fields of results are left out.
func (f *finder) values(body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		kv, ok := n.(*ast.KeyValueExpr)
		if !ok {
			return true
		}
		key, ok := kv.Key.(*ast.Ident)
		if !ok {
			return true
		}
		switch x := kv.Value.(type) {
		case *ast.CallExpr, *ast.SelectorExpr, *ast.IndexExpr:
			f.add(x, "value of "+key.Name, "mutantZero(%d, ", ")")
		case *ast.Ident:
			switch x.Name {
			case "nil", "false":
			case "true":
				f.add(x, "value of "+key.Name, "(mutantOff(%d) && ", ")")
			default:
				f.add(x, "value of "+key.Name, "mutantZero(%d, ", ")")
			}
		case *ast.BinaryExpr:
			if x.Op != token.LAND && x.Op != token.LOR { // these lose an operand
				f.add(x, "value of "+key.Name, "mutantZero(%d, ", ")")
			}
		}
		return true
	})
}
