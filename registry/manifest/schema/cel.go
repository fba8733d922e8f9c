package schema

import (
	"fmt"
	"net/url"
	"reflect"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/ext"
)

// celCost bounds the work of one rule on one value; it is what a Kubernetes API
// server allows.
const celCost = 1_000_000

// program is a compiled rule, or why it did not compile.
type program struct {
	cel.Program
	err error
}

// newEnv is the part of Kubernetes' CEL environment that Istio's rules use.
func newEnv() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable("self", cel.DynType),
		ext.Strings(),
		cel.Function("url", cel.Overload("string_to_url", []*cel.Type{cel.StringType}, urlType, cel.UnaryBinding(parseURL))),
		cel.Function("isURL", cel.Overload("is_url_string", []*cel.Type{cel.StringType}, cel.BoolType, cel.UnaryBinding(isURL))),
		cel.Function("getScheme", cel.MemberOverload("url_get_scheme", []*cel.Type{urlType}, cel.StringType, cel.UnaryBinding(scheme))),
	)
}

// rule compiles a rule once.
func (s *Set) rule(text string) *program {
	if p, ok := s.programs.Load(text); ok {
		if p, ok := p.(*program); ok {
			return p
		}
	}
	p := &program{}
	ast, issues := s.env.Compile(text)
	if p.err = issues.Err(); p.err == nil {
		p.Program, p.err = s.env.Program(ast, cel.CostLimit(celCost))
	}
	s.programs.Store(text, p)
	return p
}

// holds evaluates the rule. An error, such as that of a conversion, counts as
// not held, as it does in Kubernetes.
func (p *program) holds(self any) (bool, error) {
	if p.err != nil {
		return false, p.err
	}
	out, _, err := p.Eval(map[string]any{"self": self})
	if err != nil {
		return false, err
	}
	return out == types.True, nil
}

//nolint:gochecknoglobals // a constant: CEL's name for the type of url()
var urlType = cel.OpaqueType("kubernetes.URL")

// urlValue is the value of Kubernetes' CEL function url().
type urlValue struct{ *url.URL }

// ConvertToNative implements ref.Val.
func (u urlValue) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("converting a URL to %v is not possible", t)
}

// ConvertToType implements ref.Val.
func (u urlValue) ConvertToType(t ref.Type) ref.Val {
	if t == types.TypeType {
		return urlType
	}
	return types.NewErr("no conversion of a URL to %s", t.TypeName())
}

// Equal implements ref.Val.
func (u urlValue) Equal(other ref.Val) ref.Val {
	o, ok := other.(urlValue)
	return types.Bool(ok && o.String() == u.String())
}

// Type implements ref.Val.
func (u urlValue) Type() ref.Type { return urlType }

// Value implements ref.Val.
func (u urlValue) Value() any { return u.URL }

func parseURL(arg ref.Val) ref.Val {
	text, ok := arg.Value().(string)
	if !ok {
		return types.MaybeNoSuchOverloadErr(arg)
	}
	// As in Kubernetes, only a URL that could stand in a request is one.
	if _, err := url.ParseRequestURI(text); err != nil {
		return types.WrapErr(err)
	}
	u, err := url.Parse(text)
	if err != nil {
		return types.WrapErr(err)
	}
	return urlValue{u}
}

func isURL(arg ref.Val) ref.Val {
	text, ok := arg.Value().(string)
	if !ok {
		return types.MaybeNoSuchOverloadErr(arg)
	}
	_, err := url.ParseRequestURI(text)
	return types.Bool(err == nil)
}

func scheme(arg ref.Val) ref.Val {
	u, ok := arg.(urlValue)
	if !ok {
		return types.MaybeNoSuchOverloadErr(arg)
	}
	return types.String(u.Scheme)
}
