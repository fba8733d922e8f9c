package lastgood

import (
	"fmt"
	"slices"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// definitions are the texts that define an object or keep an earlier version of it. Nearly
// always that is one text, for which it is optimized.
type definitions struct {
	// one is the only text, or more are all of them in their order, if several define the
	// object or one defines it twice.
	one  map[mesh.Key]*Text
	more map[mesh.Key][]*Text
}

func newDefinitions() definitions {
	return definitions{one: map[mesh.Key]*Text{}, more: map[mesh.Key][]*Text{}}
}

// of are the texts that define an object, in their order.
func (c *definitions) of(key mesh.Key) []*Text {
	if list := c.more[key]; list != nil {
		return list
	}
	if f := c.one[key]; f != nil {
		return []*Text{f}
	}
	return nil
}

func (c *definitions) add(f *Text, key mesh.Key, twice bool) {
	list, was := c.more[key], c.one[key]
	switch {
	case list != nil:
	case was != nil:
		list = []*Text{was}
	case twice:
		c.one[key], c.more[key] = f, []*Text{f}
		return
	default:
		c.one[key] = f
		return
	}
	list = append(slices.Clone(list), f)
	slices.SortFunc(list, (*Text).Compare)
	c.one[key], c.more[key] = list[0], list
}

func (c *definitions) drop(f *Text, key mesh.Key) {
	list := slices.DeleteFunc(slices.Clone(c.of(key)), func(o *Text) bool { return o == f })
	switch {
	case len(list) == 0:
		delete(c.one, key)
		delete(c.more, key)
		return
	case len(list) == 1 && !list[0].defines()[key]:
		delete(c.more, key)
	default:
		c.more[key] = list
	}
	c.one[key] = list[0]
}

// winner is the text whose version of an object is in force, and the version: the
// first one that gives it or, where none does, the first one that keeps it, or else the first one
// that denies in its place.
func (c *definitions) winner(key mesh.Key) (f *Text, g *good, kept bool) {
	list := c.of(key)
	for _, f := range list {
		if g := f.V.live[key]; g != nil {
			return f, g, false
		}
	}
	for _, f := range list {
		if k, ok := f.V.kept[key]; ok {
			return f, k.good, true
		}
	}
	for _, f := range list {
		if g := f.V.denied[key]; g != nil {
			return f, g, false
		}
	}
	return nil, nil, false
}

// gives reports whether a text other than this one, or nil, gives
// the object.
func (c *definitions) gives(key mesh.Key, but *Text) bool {
	if f := c.one[key]; c.more[key] == nil {
		return f != nil && f != but && f.V.live[key] != nil
	}
	return slices.ContainsFunc(c.more[key], func(f *Text) bool { return f != but && f.V.live[key] != nil })
}

// twice reports an object that is defined more than once. The first definition is in force,
// unless it is broken and another is not.
func (c *definitions) twice(key mesh.Key, list []*Text, by string) []manifest.Fault {
	if key.Name == "" {
		return nil
	}
	var faults []manifest.Fault
	var first *Text
	var at *mesh.Origin
	winner, g, _ := c.winner(key)
	if winner != nil && winner.V.denied[key] == g {
		winner = nil
	}
	for _, f := range list {
		for _, o := range f.V.seen {
			if o.Key != key {
				continue
			}
			if first == nil {
				first, at = f, o.Origin
				continue
			}
			if first.twin(f) {
				continue
			}
			which := "the first by " + by + ", " + at.String() + ", is in force"
			if winner == nil {
				which = "neither is in force"
			} else if winner != first {
				which = "the first by " + by + " is broken, that in " + winner.Path + " is in force"
			}
			message := fmt.Sprintf("defined twice, at %s and at %s: %s; remove one of them", at, o.Origin, which)
			faults = append(faults, faultAt(o.Origin, key, CodeTwice, message))
		}
	}
	return faults
}
