package stream

import (
	"iter"
	"weak"
)

// maxDiffs bounds the differences that a Generation, or a Set, remembers:
// streams of a class are at most a few generations behind.
const maxDiffs = 8

// Get gives a resource, or nil.
func (g *Generation) Get(url TypeURL, name string) *Resource { return g.union(url).get(name) }

// All yields the resources of a type; sorted by name within each layer.
func (g *Generation) All(url TypeURL) iter.Seq[*Resource] { return g.union(url).all() }

// Diff is what changed from prev, or from nothing if that is nil, by type; types
// without a change are absent. It is computed once for a pair and shared, and
// what it is made of between generations that have sets in common: a push costs
// all streams one comparison together. Read-only.
func (g *Generation) Diff(prev *Generation) map[TypeURL]Delta {
	if g == prev {
		return nil
	}
	// A weak pointer, lest every generation keep all generations before it.
	key := weak.Make(prev)
	g.mu.Lock()
	defer g.mu.Unlock()
	if d, ok := g.diffs[key]; ok {
		return d
	}
	d := g.compare(prev)
	if g.diffs == nil || len(g.diffs) >= maxDiffs {
		g.diffs = map[weak.Pointer[Generation]]map[TypeURL]Delta{}
	}
	g.diffs[key] = d
	return d
}

func (g *Generation) compare(prev *Generation) map[TypeURL]Delta {
	out := map[TypeURL]Delta{}
	add := func(t TypeURL) {
		if _, ok := out[t]; ok {
			return
		}
		if d := g.union(t).diff(prev.union(t)); len(d.Changed)+len(d.Removed) > 0 {
			out[t] = d
		}
	}
	for _, of := range []*Generation{g, prev} {
		if of == nil {
			continue
		}
		for _, l := range of.Layers {
			for t := range l.Types {
				add(t)
			}
		}
	}
	return out
}
