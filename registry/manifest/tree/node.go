package tree

import (
	"strconv"
	"strings"
)

// Kind is the kind of a value, after JSON.
type Kind uint8

// The kinds of values.
const (
	Null Kind = iota
	Bool
	Int
	Float
	String
	List
	Map
)

// String is the name that messages use.
func (k Kind) String() string {
	switch k {
	case Null:
		return "null"
	case Bool:
		return "boolean"
	case Int:
		return "integer"
	case Float:
		return "number"
	case String:
		return "string"
	case List:
		return "list"
	case Map:
		return "object"
	default:
		return "unknown"
	}
}

// Position is a place in a file; both count from 1, 0 means unknown.
type Position struct{ Line, Column int }

// Field is one entry of a map.
type Field struct {
	Key    string
	KeyPos Position
	Value  *Node
}

// Node is one value of a document.
type Node struct {
	Kind Kind
	Pos  Position
	// Text is a scalar as it was written, and the value of a String.
	Text string
	// Plain reports whether a scalar was written without quotes.
	Plain bool

	Bool  bool
	Int   int64
	Float float64 // also set for an Int
	Items []*Node
	// Fields are in the order of the document, without duplicates.
	Fields []Field
	// where finds fields; nil while they are few.
	where *index
}

// fewFields is how many fields of a map are compared one by one.
const fewFields = 16

// index finds the fields of a large map: whoever reports many of them looks for each.
type index struct {
	at      map[string]int
	lengths map[int]bool // of the keys
}

// SetFields replaces the fields of a map.
func (n *Node) SetFields(fields []Field) {
	n.Fields, n.where = fields, nil
	if len(fields) <= fewFields {
		return
	}
	n.where = &index{make(map[string]int, len(fields)), map[int]bool{}}
	for i := range fields {
		n.where.add(fields[i].Key, i)
	}
}

func (x *index) add(key string, at int) { x.at[key], x.lengths[len(key)] = at, true }

// Get returns the value of a map's field, or nil.
func (n *Node) Get(key string) *Node {
	if f := n.Field(key); f != nil {
		return f.Value
	}
	return nil
}

// Field returns the map's field of that name, or nil.
func (n *Node) Field(key string) *Field {
	if n == nil {
		return nil
	}
	if n.where != nil && len(n.where.at) == len(n.Fields) { // else somebody has changed the fields
		if i, ok := n.where.at[key]; ok {
			return &n.Fields[i]
		}
		return nil
	}
	for i := range n.Fields {
		if n.Fields[i].Key == key {
			return &n.Fields[i]
		}
	}
	return nil
}

// Str returns the text of a map's field if that is a string, else "".
func (n *Node) Str(key string) string {
	if v := n.Get(key); v != nil && v.Kind == String {
		return v.Text
	}
	return ""
}

// Nearest finds the position of what a path such as "spec.http[0].route[1].weight"
// names: that of the value, or where it is not written, of the nearest part of
// the path that is. For an empty path it is the node's own.
func (n *Node) Nearest(path string) Position {
	pos := n.Pos
	for n != nil && path != "" {
		var next *Node
		if strings.HasPrefix(path, "[") {
			index, rest, ok := strings.Cut(path[1:], "]")
			if !ok {
				return pos
			}
			path = rest
			next = n.element(index)
		} else {
			path = strings.TrimPrefix(path, ".")
			next, path = n.step(path)
		}
		if next == nil {
			return pos
		}
		n, pos = next, next.Pos
	}
	return pos
}

// element is an item of a list, or the field whose key stands in brackets.
func (n *Node) element(index string) *Node {
	if n.Kind == Map {
		return n.Get(strings.Trim(index, `"`))
	}
	i, err := strconv.Atoi(index)
	if err != nil || i < 0 || i >= len(n.Items) {
		return nil
	}
	return n.Items[i]
}

// step takes one field off a path. Keys may contain dots and brackets, as
// label names do, so the longest key that fits wins.
func (n *Node) step(path string) (*Node, string) {
	for end := len(path); end > 0; end-- {
		if end < len(path) && path[end] != '.' && path[end] != '[' {
			continue
		}
		if n.where != nil && !n.where.lengths[end] {
			continue
		}
		if f := n.Field(path[:end]); f != nil {
			return f.Value, path[end:]
		}
	}
	return nil, path
}

// JSON is the value as encoding/json would have decoded it: map[string]any,
// []any, string, bool, nil, int64 or float64.
func (n *Node) JSON() any {
	switch n.Kind {
	case Null:
		return nil
	case Bool:
		return n.Bool
	case Int:
		return n.Int
	case Float:
		return n.Float
	case String:
		return n.Text
	case List:
		list := make([]any, len(n.Items))
		for i, item := range n.Items {
			list[i] = item.JSON()
		}
		return list
	case Map:
		m := make(map[string]any, len(n.Fields))
		for _, f := range n.Fields {
			m[f.Key] = f.Value.JSON()
		}
		return m
	default:
		return nil
	}
}
