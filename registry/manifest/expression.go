package manifest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
)

// Expressions are CEL that an Envoy evaluates for each request. One that it cannot compile makes
// it refuse the whole listener, and it knows less than CEL has: stock Envoys have no string()
// and none of the extensions, and loops are switched off.

// ExpressionFunction is how a function may be called.
type ExpressionFunction struct {
	// Arguments are the numbers of arguments that it takes; a value before the dot counts.
	Arguments []int
	// Plain is f(x), and Member is x.f().
	Plain, Member bool
}

// expressionFunctions are the functions that every Envoy from 1.36 on has, by name.
//
//nolint:gochecknoglobals // a read-only table, made once
var expressionFunctions = sync.OnceValue(func() map[string]ExpressionFunction {
	out := map[string]ExpressionFunction{"size": {[]int{1}, true, true}}
	add := func(names string, plain, member bool, arguments ...int) {
		for name := range strings.FieldsSeq(names) {
			out[name] = ExpressionFunction{arguments, plain, member}
		}
	}
	add(`_?_:_ re.extract`, true, false, 3)
	add(`!_ -_ int uint double bytes bool type dyn timestamp duration`, true, false, 1)
	add(`_&&_ _||_ _==_ _!=_ _<_ _<=_ _>_ _>=_ _+_ _-_ _*_ _/_ _%_ _[_] @in re.capture re.captureN`, true, false, 2)
	add(`contains endsWith startsWith matches`, true, true, 2)
	// The second argument is a time zone.
	add(`getFullYear getMonth getDate getDayOfMonth getDayOfWeek getDayOfYear getHours getMinutes getSeconds getMilliseconds`, false, true, 1, 2)
	return out
})

// expressionRoots are the attributes that every Envoy from 1.36 on has.
//
//nolint:gochecknoglobals // a read-only table
var expressionRoots = []string{
	"connection", "destination", "filter_state", "metadata", "request", "response", "source", "upstream", "upstream_filter_state", "xds",
}

// expressionTypes are the names of types, which type() returns.
//
//nolint:gochecknoglobals // a read-only table
var expressionTypes = []string{"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint"}

const (
	// maxExpression is in bytes. Envoy's limit is far above, and a long expression is slow.
	maxExpression = 4096
	// maxExpressionDepth is safely below what Envoy's parser takes.
	maxExpressionDepth = 20
)

// ExpressionFunctions are the functions that expressions may use, by name; for tests.
func ExpressionFunctions() map[string]ExpressionFunction { return maps.Clone(expressionFunctions()) }

//nolint:gochecknoglobals // made once
var expressionParser = sync.OnceValues(func() (*cel.Env, error) { return cel.NewEnv(cel.ParserRecursionLimit(4 * maxExpressionDepth)) })

// expressionFault says why an expression cannot be in force, or "".
func expressionFault(text string) string {
	if len(text) > maxExpression {
		return fmt.Sprintf("the expression has %d bytes; at most %d are allowed", len(text), maxExpression)
	}
	if nesting(text) > maxExpressionDepth {
		return fmt.Sprintf("the expression is nested more than %d deep", maxExpressionDepth)
	}
	env, err := expressionParser()
	if err != nil {
		return fmt.Sprintf("the expression cannot be judged: %v", err)
	}
	parsed, issues := env.Parse(text)
	if issues.Err() != nil {
		first := issues.Errors()[0]
		return fmt.Sprintf("%q is not a CEL expression: %s (character %d)", clipFormat(text), first.Message, first.Location.Column()+1)
	}
	if strings.Contains(text, "`") {
		return "Envoy knows no names in backquotes; write map['name']"
	}
	fault := ""
	walkExpression(parsed.NativeRep().Expr(), 1, func(e ast.Expr, depth int) bool {
		if fault == "" {
			fault = stepFault(e, depth)
		}
		return fault == ""
	})
	return fault
}

// stepFault judges one step of an expression, without those in it.
func stepFault(e ast.Expr, depth int) string {
	if depth > maxExpressionDepth {
		return fmt.Sprintf("the expression is nested more than %d deep", maxExpressionDepth)
	}
	switch e.Kind() {
	case ast.CallKind:
		return callFault(e.AsCall())
	case ast.ComprehensionKind:
		return "Envoy has no loops: all, exists, exists_one, filter and map"
	case ast.StructKind:
		return "Envoy's expressions make no messages; compare their fields"
	case ast.IdentKind:
		name := e.AsIdent()
		switch {
		case slices.Contains(expressionRoots, name) || slices.Contains(expressionTypes, name):
		case name == "node":
			return "stock Envoys do not know node; write xds.node"
		default:
			return fmt.Sprintf("Envoy does not know %s; there are %s", clipFormat(name), strings.Join(expressionRoots, ", "))
		}
	case ast.UnspecifiedExprKind, ast.ListKind, ast.LiteralKind, ast.MapKind, ast.SelectKind:
	}
	return ""
}

func callFault(call ast.CallExpr) string {
	name, args, member := call.FunctionName(), call.Args(), call.IsMemberFunction()
	if member {
		if target := call.Target(); target.Kind() == ast.IdentKind && target.AsIdent() == "re" {
			name, member = "re."+name, false
		} else {
			args = slices.Concat([]ast.Expr{target}, args)
		}
	}
	f, known := expressionFunctions()[name]
	switch {
	case name == "string":
		return "stock Envoys have no string(); numbers need none, and texts are compared as they are"
	case !known:
		return "not every Envoy from 1.36 on has the function " + clipFormat(name)
	case !slices.Contains(f.Arguments, len(args)):
		return fmt.Sprintf("%s takes %d arguments, not %d", name, f.Arguments[0], len(args))
	case member && !f.Member:
		return fmt.Sprintf("write %s(x), not x.%s()", name, name)
	case !member && !f.Plain:
		return fmt.Sprintf("write x.%s(), not %s(x)", name, name)
	}
	if name == "matches" && args[1].Kind() == ast.LiteralKind {
		if pattern, ok := args[1].AsLiteral().Value().(string); ok {
			if _, err := regexp.Compile(pattern); err != nil {
				return fmt.Sprintf("%q is not a regular expression of RE2", clipFormat(pattern))
			}
		}
	}
	return ""
}

// walkExpression calls f for an expression and, if f returns true, for all in it.
func walkExpression(e ast.Expr, depth int, f func(e ast.Expr, depth int) bool) {
	if !f(e, depth) {
		return
	}
	down := func(list ...ast.Expr) {
		for _, x := range list {
			walkExpression(x, depth+1, f)
		}
	}
	switch e.Kind() {
	case ast.CallKind:
		call := e.AsCall()
		if target := call.Target(); call.IsMemberFunction() && (target.Kind() != ast.IdentKind || target.AsIdent() != "re") {
			down(target)
		}
		// A chain of the same operator is as deep as it is long, for Envoy's parser not.
		if name := call.FunctionName(); name == "_&&_" || name == "_||_" {
			for _, x := range call.Args() {
				same := x.Kind() == ast.CallKind && x.AsCall().FunctionName() == name
				if same {
					walkExpression(x, depth, f)
				} else {
					down(x)
				}
			}
			return
		}
		down(call.Args()...)
	case ast.ListKind:
		down(e.AsList().Elements()...)
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			m := entry.AsMapEntry()
			down(m.Key(), m.Value())
		}
	case ast.SelectKind:
		down(e.AsSelect().Operand())
	case ast.UnspecifiedExprKind, ast.ComprehensionKind, ast.IdentKind, ast.LiteralKind, ast.StructKind:
	}
}

// nesting is the largest number of brackets that are open at once, without regard to quotes.
func nesting(text string) int {
	most, open := 0, 0
	for _, r := range text {
		switch r {
		case '(', '[', '{':
			open++
			most = max(most, open)
		case ')', ']', '}':
			open--
		}
	}
	return most
}
