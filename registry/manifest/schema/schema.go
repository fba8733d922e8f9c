package schema

import (
	"bufio"
	"bytes"
	_ "embed" // the table of schemas
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"sync"

	"github.com/google/cel-go/cel"
)

// table has one JSON value a line: a header, then shared parts, each of which
// refers only to earlier ones, and then a line for each version of each kind.
//
//go:embed table.jsonl
var table []byte

// Schema is the part of OpenAPI's schema that Istio's definitions use.
type Schema struct {
	Ref string `json:"$ref,omitempty"`

	Type                 string             `json:"type,omitempty"`
	Format               string             `json:"format,omitempty"`
	Nullable             bool               `json:"nullable,omitempty"`
	Default              any                `json:"default,omitempty"`
	Enum                 []any              `json:"enum,omitempty"`
	Pattern              string             `json:"pattern,omitempty"`
	Minimum              *float64           `json:"minimum,omitempty"`
	Maximum              *float64           `json:"maximum,omitempty"`
	MinLength            *int               `json:"minLength,omitempty"`
	MaxLength            *int               `json:"maxLength,omitempty"`
	MinItems             *int               `json:"minItems,omitempty"`
	MaxItems             *int               `json:"maxItems,omitempty"`
	MinProperties        *int               `json:"minProperties,omitempty"`
	MaxProperties        *int               `json:"maxProperties,omitempty"`
	Required             []string           `json:"required,omitempty"`
	Properties           map[string]*Schema `json:"properties,omitempty"`
	AdditionalProperties *Schema            `json:"additionalProperties,omitempty"`
	Items                *Schema            `json:"items,omitempty"`
	AllOf                []*Schema          `json:"allOf,omitempty"`
	AnyOf                []*Schema          `json:"anyOf,omitempty"`
	OneOf                []*Schema          `json:"oneOf,omitempty"`
	Not                  *Schema            `json:"not,omitempty"`
	PreserveUnknown      bool               `json:"x-kubernetes-preserve-unknown-fields,omitempty"`
	IntOrString          bool               `json:"x-kubernetes-int-or-string,omitempty"`
	ListType             string             `json:"x-kubernetes-list-type,omitempty"`
	ListMapKeys          []string           `json:"x-kubernetes-list-map-keys,omitempty"`
	Rules                []Rule             `json:"x-kubernetes-validations,omitempty"`

	pattern *regexp.Regexp
}

// Rule is a condition in CEL.
type Rule struct {
	Rule    string `json:"rule"`
	Message string `json:"message,omitempty"`
}

// GVK names a version of a kind.
type GVK struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

// APIVersion is the form that a manifest writes, "group/version".
func (g GVK) APIVersion() string { return g.Group + "/" + g.Version }

// header is the first line of the table.
type header struct {
	Comment string `json:"comment"`
	Module  string `json:"module"`
}

// line is any other line of the table.
type line struct {
	Def    string  `json:"def,omitempty"`
	GVK    *GVK    `json:"gvk,omitempty"`
	Schema *Schema `json:"schema"`
}

// Set is all schemas, with their CEL rules compiled as they are first used.
type Set struct {
	schemas map[GVK]*Schema
	kinds   []GVK // sorted by group, kind and version
	env     *cel.Env

	// programs has a *program for each rule's text.
	programs sync.Map
}

// New reads the table.
func New() (*Set, error) {
	env, err := newEnv()
	if err != nil {
		return nil, fmt.Errorf("preparing CEL: %w", err)
	}
	s := &Set{schemas: map[GVK]*Schema{}, env: env}
	lines := bufio.NewScanner(bytes.NewReader(table))
	lines.Buffer(nil, len(table)+1)
	defs := map[string]*Schema{}
	for number := 1; lines.Scan(); number++ {
		if number == 1 {
			continue
		}
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("reading line %d of the schema table: %w", number, err)
		}
		if err := l.Schema.prepare(defs); err != nil {
			return nil, fmt.Errorf("reading line %d of the schema table: %w", number, err)
		}
		if l.GVK == nil {
			defs[l.Def] = l.Schema
			continue
		}
		s.schemas[*l.GVK] = l.Schema.resolve(defs)
		s.kinds = append(s.kinds, *l.GVK)
	}
	return s, lines.Err()
}

// Lookup returns the schema of a version of a kind, or nil.
func (s *Set) Lookup(gvk GVK) *Schema { return s.schemas[gvk] }

// Kinds are all versions of all kinds, sorted; not to be changed.
func (s *Set) Kinds() []GVK { return slices.Clone(s.kinds) }

// prepare resolves references and compiles patterns, all the way down.
func (s *Schema) prepare(defs map[string]*Schema) error {
	if s.Ref != "" && defs[s.Ref] == nil {
		return fmt.Errorf("unknown part %q", s.Ref)
	}
	if s.Pattern != "" {
		p, err := regexp.Compile(s.Pattern)
		if err != nil {
			return fmt.Errorf("compiling a pattern: %w", err)
		}
		s.pattern = p
	}
	var err error
	s.children(func(c *Schema) *Schema {
		if prepErr := c.prepare(defs); prepErr != nil {
			err = prepErr
		}
		return c.resolve(defs)
	})
	return err
}

func (s *Schema) resolve(defs map[string]*Schema) *Schema {
	if s.Ref != "" {
		return defs[s.Ref]
	}
	return s
}

// children replaces each schema directly within s by what f makes of it.
func (s *Schema) children(f func(*Schema) *Schema) {
	for name, p := range s.Properties {
		s.Properties[name] = f(p)
	}
	for _, one := range []**Schema{&s.AdditionalProperties, &s.Items, &s.Not} {
		if *one != nil {
			*one = f(*one)
		}
	}
	for _, list := range [][]*Schema{s.AllOf, s.AnyOf, s.OneOf} {
		for i := range list {
			list[i] = f(list[i])
		}
	}
}
