package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/registry/codes"
	"github.com/fairlead/fairlead/registry/manifest/tree"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Code names a sort of fault. Codes are stable and never used again for
// something else.
type Code string

// The codes of this package.
const (
	// CodeBlank: there is nothing in the text.
	CodeBlank Code = codes.Blank
	// CodeSyntax: the text is not YAML.
	CodeSyntax Code = codes.Syntax
	// CodeDuplicateKey: a key is there twice.
	CodeDuplicateKey Code = codes.DuplicateKey
	// CodeValue: a key or scalar cannot be represented.
	CodeValue Code = codes.Value
	// CodeLimit: the file is larger or deeper than anyone could mean.
	CodeLimit Code = codes.Limit
	// CodeKind: the kind or apiVersion is missing, unknown or not Istio's.
	CodeKind Code = codes.Kind
	// CodeMetadata: metadata that Kubernetes would refuse.
	CodeMetadata Code = codes.Metadata
	// CodeNamespace: the object is outside the namespaces of its directory.
	CodeNamespace Code = codes.Namespace
	// CodeUnknownField: the kind has no such field.
	CodeUnknownField Code = codes.UnknownField
	// CodeType: the value has the wrong type.
	CodeType Code = codes.Type
	// CodeRequired: a required field is missing.
	CodeRequired Code = codes.Required
	// CodeEnum: the value is not one of the field's.
	CodeEnum Code = codes.Enum
	// CodeBounds: the value is too small, large, short or long.
	CodeBounds Code = codes.Bounds
	// CodeFormat: the text does not have the form it must have.
	CodeFormat Code = codes.Format
	// CodeOneOf: fields that exclude one another are set, or none is.
	CodeOneOf Code = codes.OneOf
	// CodeDuplicateItem: two items of a list have the same key.
	CodeDuplicateItem Code = codes.DuplicateItem
	// CodeRule: a rule of the schema is broken.
	CodeRule Code = codes.Rule
	// CodeWebhook: a rule of Istio's webhook is broken.
	CodeWebhook Code = codes.Webhook
	// CodeNotInForce: the object is valid, but this build does not implement a
	// part of it, or must not hand it to an Envoy, so it is kept out whole.
	CodeNotInForce Code = codes.NotInForce
	// CodeNoEffect: the field is valid and has no effect here, by which nothing is lost.
	CodeNoEffect Code = codes.NoEffect
	// CodeExpansion: the object makes more than anyone could mean, such as endpoints.
	CodeExpansion Code = codes.Expansion
	// CodeHashTables: a table of consistentHash is too large for a source that is bound to namespaces.
	CodeHashTables Code = codes.HashTables
	// CodeExpression: a regular expression is too large for a source that is bound to namespaces.
	CodeExpression Code = codes.Expression
	// CodeLostSelector: a label or a condition of a match has no value, and selects nothing.
	CodeLostSelector Code = codes.LostSelector
	// CodeLostCondition: a condition of a rule that allows requests, the action of a policy or its
	// mode has no value.
	CodeLostCondition Code = codes.LostCondition
)

// Severity says whether a fault keeps an object out.
type Severity string

// The severities.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// Fault is one thing that is wrong in a file.
type Fault struct {
	// Origin is never nil.
	Origin *mesh.Origin
	// Key names the object; its parts are empty where they are not known.
	Key mesh.Key
	// Field is the path of what is wrong, such as "spec.http[0].route[1].weight";
	// empty for the whole document.
	Field    string
	Code     Code
	Severity Severity
	// Message says what is wrong and what to write instead.
	Message string
}

// maxLine bounds the line of one fault.
const maxLine = 8192

// String is "path:line:column: severity [code] Kind namespace/name field: message",
// fit for a terminal: nearly all of it are words of who wrote the text.
func (f Fault) String() string {
	var s strings.Builder
	s.WriteString(f.Origin.String() + ": " + string(f.Severity) + " [" + string(f.Code) + "]")
	if f.Key.Kind != "" {
		s.WriteString(" " + string(f.Key.Kind))
	}
	if f.Key.Name != "" {
		s.WriteString(" " + f.Key.Namespace + "/" + f.Key.Name)
	}
	if f.Field != "" {
		s.WriteString(" " + f.Field)
	}
	return safetext.Sanitize(s.String()+": "+f.Message, maxLine)
}

// HasErrors reports whether any of the faults keeps an object out.
func HasErrors(faults []Fault) bool {
	return slices.ContainsFunc(faults, func(f Fault) bool { return f.Severity == Error })
}

func sortFaults(faults []Fault) {
	slices.SortStableFunc(faults, func(a, b Fault) int {
		return cmp.Or(
			cmp.Compare(a.Origin.Line, b.Origin.Line), cmp.Compare(a.Origin.Column, b.Origin.Column),
			cmp.Compare(a.Field, b.Field), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Message, b.Message),
		)
	})
}

// reporter collects the faults of one object.
type reporter struct {
	source, path string
	key          mesh.Key
	faults       []Fault
}

func (r *reporter) origin(pos tree.Position) *mesh.Origin {
	return &mesh.Origin{Source: r.source, Path: r.path, Line: pos.Line, Column: pos.Column}
}

func (r *reporter) add(code Code, pos tree.Position, field, message string) {
	r.faults = append(r.faults, Fault{Origin: r.origin(pos), Field: field, Code: code, Severity: Error, Message: message})
}

// warn adds what keeps no object out.
func (r *reporter) warn(code Code, pos tree.Position, field, message string) {
	r.faults = append(r.faults, Fault{Origin: r.origin(pos), Field: field, Code: code, Severity: Warning, Message: message})
}

// finish gives every fault the object's key, which may have been learnt late,
// and sorts them by position.
func (r *reporter) finish() []Fault {
	for i := range r.faults {
		r.faults[i].Key = r.key
	}
	sortFaults(r.faults)
	if len(r.faults) > maxFaults {
		r.shorten()
	}
	return r.faults
}

// maxFaults bounds what one object can make a status or a log grow by.
const maxFaults = 200

// shorten replaces the faults behind the first ones by their number.
func (r *reporter) shorten() {
	rest := r.faults[maxFaults:]
	last := rest[0]
	last.Field, last.Message = "", fmt.Sprintf("and %d more faults from here on", len(rest))
	if HasErrors(rest) {
		last.Severity = Error
	}
	r.faults = append(r.faults[:maxFaults:maxFaults], last)
}
