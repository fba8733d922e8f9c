package schema

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/fairlead/fairlead/registry/manifest/tree"
)

// Code says what sort of problem a Problem is.
type Code uint8

// The sorts of problems.
const (
	// UnknownField is a field that the kind does not have.
	UnknownField Code = iota
	// WrongType is a value of another type than the field's.
	WrongType
	// Missing is a required field that is not set.
	Missing
	// NotAllowed is a value that is not one of the field's values.
	NotAllowed
	// OutOfBounds is a number, text, list or object that is too small or large.
	OutOfBounds
	// BadFormat is a text that does not have the required form.
	BadFormat
	// OneOf is none, or more than one, of fields that exclude one another.
	OneOf
	// DuplicateItem is a second item of a keyed list with the same key.
	DuplicateItem
	// RuleBroken is a CEL rule that does not hold.
	RuleBroken
)

// Problem is a place where a document is not what its schema says.
type Problem struct {
	Code    Code
	Path    string
	Pos     tree.Position
	Message string
	// Unusable reports that nothing can be made of the value; otherwise the
	// problem is with an object or list whose parts may well be right.
	Unusable bool
}

// Validate judges a whole document. It reports every problem; where a value is
// wrong in itself, rules that look at it from above are not asked.
func (s *Set) Validate(root *tree.Node, schema *Schema) []Problem {
	w := walk{set: s}
	w.value(root, schema, true)
	return w.problems
}

// walk is one validation.
type walk struct {
	set *Set
	// at is the path of the value that is looked at.
	at       tree.Trail
	problems []Problem
	// trial is set while a branch of anyOf, oneOf or not is tried: no unknown
	// fields, no rules, and instead of a list of problems whether there is one.
	trial, failed bool
}

// add reports a problem with the value that is looked at.
func (w *walk) add(code Code, n *tree.Node, format string, args ...any) {
	if w.trial {
		w.failed = true
		return
	}
	w.problems = append(w.problems, Problem{
		Code: code, Path: w.at.String(), Pos: n.Pos, Message: fmt.Sprintf(format, args...),
		Unusable: code == WrongType || n.Kind != tree.Map && n.Kind != tree.List,
	})
}

func (w *walk) value(n *tree.Node, s *Schema, root bool) {
	before := len(w.problems)
	if !w.typed(n, s) {
		return
	}
	if len(s.Enum) > 0 {
		w.enum(n, s)
	}
	switch n.Kind {
	case tree.Null:
		return
	case tree.String:
		w.text(n, s)
	case tree.Int, tree.Float:
		w.number(n, s)
	case tree.List:
		w.list(n, s)
	case tree.Map:
		w.object(n, s, root)
	case tree.Bool:
	}
	w.combined(n, s)
	if len(w.problems) == before && !w.trial {
		w.rules(n, s)
	}
}

// typed reports whether the value has the schema's type.
func (w *walk) typed(n *tree.Node, s *Schema) bool {
	var ok bool
	switch {
	case s.IntOrString:
		ok = n.Kind == tree.String || integral(n)
	case s.Type == "":
		return true
	case n.Kind == tree.Null:
		ok = s.Nullable
	case s.Type == "integer":
		ok = integral(n)
	case s.Type == "number":
		ok = n.Kind == tree.Int || n.Kind == tree.Float
	default:
		ok = n.Kind == kindOf(s.Type)
	}
	if !ok {
		w.add(WrongType, n, "%s", typeMessage(n, s))
	}
	return ok
}

// integral reports whether n is an integer, if one too large for an int64.
func integral(n *tree.Node) bool {
	return n.Kind == tree.Int || n.Kind == tree.Float && n.Float == math.Trunc(n.Float)
}

func kindOf(typ string) tree.Kind {
	switch typ {
	case "string":
		return tree.String
	case "boolean":
		return tree.Bool
	case "array":
		return tree.List
	case "object":
		return tree.Map
	default:
		return tree.Null
	}
}

func (w *walk) enum(n *tree.Node, s *Schema) {
	names := enumNames(s)
	switch {
	case n.Kind == tree.String && slices.Contains(names, n.Text):
	case n.Kind == tree.String:
		w.add(NotAllowed, n, "%q is not one of its values; %s", n.Text, choose(n.Text, names))
	default:
		w.add(NotAllowed, n, "must be one of %s", strings.Join(names, ", "))
	}
}

func (w *walk) text(n *tree.Node, s *Schema) {
	length := utf8.RuneCountInString(n.Text)
	switch {
	case s.MaxLength != nil && length > *s.MaxLength:
		w.add(OutOfBounds, n, "has %d characters; at most %d are allowed", length, *s.MaxLength)
	case s.MinLength != nil && length < *s.MinLength:
		if length == 0 {
			w.add(OutOfBounds, n, "must not be empty")
		} else {
			w.add(OutOfBounds, n, "has %d characters; at least %d are needed", length, *s.MinLength)
		}
	case s.pattern != nil && !s.pattern.MatchString(n.Text):
		w.add(BadFormat, n, "%q does not match the pattern %s", n.Text, s.Pattern)
	case !formatOK(s.Format, n.Text):
		w.add(BadFormat, n, "%q is not %s", n.Text, formatNames(s.Format))
	}
}

func (w *walk) number(n *tree.Node, s *Schema) {
	switch {
	case s.Type == "integer" && s.Format == "int32" && (n.Float < math.MinInt32 || n.Float > math.MaxInt32):
		w.add(OutOfBounds, n, "%s does not fit a 32-bit integer", n.Text)
	case s.Type == "integer" && math.Abs(n.Float) >= 1<<63:
		w.add(OutOfBounds, n, "%s does not fit a 64-bit integer", n.Text)
	case s.Maximum != nil && n.Float > *s.Maximum:
		w.add(OutOfBounds, n, "%s is too large; at most %v is allowed", n.Text, fmtNumber(*s.Maximum))
	case s.Minimum != nil && n.Float < *s.Minimum:
		w.add(OutOfBounds, n, "%s is too small; at least %v is needed", n.Text, fmtNumber(*s.Minimum))
	}
}

func (w *walk) list(n *tree.Node, s *Schema) {
	if s.MaxItems != nil && len(n.Items) > *s.MaxItems {
		w.add(OutOfBounds, n, "has %d items; at most %d are allowed", len(n.Items), *s.MaxItems)
	}
	if s.MinItems != nil && len(n.Items) < *s.MinItems {
		w.add(OutOfBounds, n, "has %d items; at least %d needed", len(n.Items), *s.MinItems)
	}
	if s.Items != nil {
		for i, item := range n.Items {
			w.at.Item(i)
			w.value(item, s.Items, false)
			w.at.Up()
		}
	}
	if s.ListType == "map" && !w.trial {
		w.keyed(n, s)
	}
}

// keyed looks for items of a keyed list that have the same key. An item that
// lacks the key counts as having an empty one.
func (w *walk) keyed(n *tree.Node, s *Schema) {
	seen := map[string]int{}
	for i, item := range n.Items {
		var key []string
		for _, name := range s.ListMapKeys {
			if v := item.Get(name); v != nil {
				key = append(key, fmt.Sprintf("%s: %v", name, v.JSON()))
			}
		}
		text := strings.Join(key, ", ")
		if first, dup := seen[text]; dup {
			w.at.Item(i)
			w.add(DuplicateItem, item, "{%s} is in the list already, as item %d; %s must be unique", text, first, strings.Join(s.ListMapKeys, " and "))
			w.at.Up()
			continue
		}
		seen[text] = i
	}
}

func (w *walk) object(n *tree.Node, s *Schema, root bool) {
	if s.MaxProperties != nil && len(n.Fields) > *s.MaxProperties {
		w.add(OutOfBounds, n, "has %d entries; at most %d are allowed", len(n.Fields), *s.MaxProperties)
	}
	if s.MinProperties != nil && len(n.Fields) < *s.MinProperties {
		w.add(OutOfBounds, n, "has %d entries; at least %d needed", len(n.Fields), *s.MinProperties)
	}
	for i := range n.Fields {
		f := &n.Fields[i]
		w.at.Field(f.Key)
		switch p := s.Properties[f.Key]; {
		case p != nil:
			w.value(f.Value, p, false)
		case s.AdditionalProperties != nil:
			w.value(f.Value, s.AdditionalProperties, false)
		case w.trial || s.PreserveUnknown || root && isEnvelope(f.Key):
		default:
			w.unknown(f, s, root)
		}
		w.at.Up()
	}
	for _, name := range s.Required {
		if n.Field(name) == nil {
			w.at.Field(name)
			w.add(Missing, n, "%s is required", name)
			w.at.Up()
		}
	}
}

// isEnvelope reports whether a field is one that every object has.
func isEnvelope(name string) bool {
	return name == "apiVersion" || name == "kind" || name == "metadata"
}

// unknown reports a field, which is what is looked at.
func (w *walk) unknown(f *tree.Field, s *Schema, root bool) {
	names := make([]string, 0, len(s.Properties)+3)
	for name := range s.Properties {
		names = append(names, name)
	}
	if root {
		names = append(names, "apiVersion", "kind", "metadata")
	}
	slices.Sort(names)
	where := "there is no field"
	if root {
		where = "an object has no field"
	}
	w.problems = append(w.problems, Problem{
		Code: UnknownField, Path: w.at.String(), Pos: f.KeyPos, Unusable: true,
		Message: fmt.Sprintf("%s %q here; %s", where, f.Key, choose(f.Key, names)),
	})
}

// combined judges allOf, anyOf, oneOf and not.
func (w *walk) combined(n *tree.Node, s *Schema) {
	for _, all := range s.AllOf {
		w.value(n, all.valuesOnly(), false)
	}
	if len(s.AnyOf) > 0 && !slices.ContainsFunc(s.AnyOf, func(b *Schema) bool { return w.fits(n, b) }) {
		w.add(OneOf, n, "must have %s", alternatives(s.AnyOf, "or"))
	}
	if len(s.OneOf) > 0 {
		fitting := 0
		for _, b := range s.OneOf {
			if w.fits(n, b) {
				fitting++
			}
		}
		if fitting != 1 {
			w.add(OneOf, n, "%s", oneOfMessage(n, s.OneOf, fitting))
		}
	}
	if s.Not != nil && w.fits(n, s.Not) {
		w.add(OneOf, n, "must not have %s", alternatives([]*Schema{s.Not}, "or"))
	}
}

// valuesOnly is a branch of allOf: it restricts values but names no fields of
// its own, so nothing in it is unknown.
func (s *Schema) valuesOnly() *Schema {
	c := *s
	c.PreserveUnknown = true
	return &c
}

// fits reports whether a value passes one branch.
func (w *walk) fits(n *tree.Node, s *Schema) bool {
	t := walk{set: w.set, trial: true}
	t.value(n, s, false)
	return !t.failed
}

// rules asks the CEL rules of one value.
func (w *walk) rules(n *tree.Node, s *Schema) {
	var self any
	for _, r := range s.Rules {
		if plainly := plain[r.Rule]; plainly != nil && plainly(n) {
			continue
		}
		if self == nil {
			self = n.JSON()
		}
		ok, err := w.set.rule(r.Rule).holds(self)
		if ok {
			continue
		}
		message := r.Message
		switch {
		case message == "" && err != nil:
			message = fmt.Sprintf("breaks the rule %s: %v", strings.TrimSpace(r.Rule), err)
		case message == "":
			message = "breaks the rule " + strings.TrimSpace(r.Rule)
		}
		w.add(RuleBroken, n, "%s", ruleMessage(n, message))
	}
}
