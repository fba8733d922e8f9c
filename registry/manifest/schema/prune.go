package schema

import (
	"slices"

	"github.com/fairlead/fairlead/registry/manifest/tree"
)

// Pruned is an empty value (null) that counts as absent.
type Pruned struct {
	// Path is that of the value, and Name its last part.
	Path, Name string
	// In is the path of the object or map that had it.
	In  string
	Pos tree.Position
	// Entry means that In is a map of keys that the schema does not name, such as labels, and Left
	// is how many entries it still has.
	Entry bool
	Left  int
}

// Prune removes the nulls that a Kubernetes API server removes from an object before it judges it
// (apiextensions-apiserver, pkg/apiserver/schema/defaulting/prunenulls.go): those of properties and
// of values of maps that are neither nullable nor have a default. Nulls of fields that the schema
// does not have, and those in lists, stay. What stays of a document is shared; nothing is changed.
func Prune(root *tree.Node, schema *Schema) (*tree.Node, []Pruned) {
	if !hasNull(root) {
		return root, nil
	}
	var p pruning
	return p.node(root, schema), p.pruned
}

func hasNull(n *tree.Node) bool {
	if n.Kind == tree.Null || slices.ContainsFunc(n.Items, hasNull) {
		return true
	}
	for i := range n.Fields {
		if hasNull(n.Fields[i].Value) {
			return true
		}
	}
	return false
}

type pruning struct {
	at     tree.Trail
	pruned []Pruned
}

// field is the schema of a field, or nil.
func (s *Schema) field(name string) (of *Schema, entry bool) {
	if p := s.Properties[name]; p != nil {
		return p, false
	}
	return s.AdditionalProperties, true
}

// node is n without its nulls; n itself, if it has none.
func (p *pruning) node(n *tree.Node, s *Schema) *tree.Node {
	switch {
	case s == nil:
		return n
	case n.Kind == tree.Map:
		return p.object(n, s)
	case n.Kind == tree.List:
		var items []*tree.Node
		for i, item := range n.Items {
			p.at.Item(i)
			if now := p.node(item, s.Items); now != item {
				if items == nil {
					items = append(items, n.Items...)
				}
				items[i] = now
			}
			p.at.Up()
		}
		if items != nil {
			c := *n
			c.Items = items
			return &c
		}
	}
	return n
}

func (p *pruning) object(n *tree.Node, s *Schema) *tree.Node {
	first := len(p.pruned)
	fields := make([]tree.Field, 0, len(n.Fields))
	same := true
	for _, f := range n.Fields {
		of, entry := s.field(f.Key)
		if f.Value.Kind == tree.Null && of != nil && !of.Nullable && of.Default == nil {
			one := Pruned{Name: f.Key, In: p.at.String(), Pos: f.KeyPos, Entry: entry}
			p.at.Field(f.Key)
			one.Path = p.at.String()
			p.at.Up()
			p.pruned = append(p.pruned, one)
			same = false
			continue
		}
		p.at.Field(f.Key)
		now := p.node(f.Value, of)
		p.at.Up()
		same = same && now == f.Value
		f.Value = now
		fields = append(fields, f)
	}
	if same {
		return n
	}
	at := p.at.String()
	for i := range p.pruned[first:] {
		if one := &p.pruned[first+i]; one.In == at {
			one.Left = len(fields)
		}
	}
	c := *n
	c.SetFields(fields)
	return &c
}
