package stream

import (
	"iter"
	"slices"
)

// Get gives a resource, or nil.
func (g *Generation) Get(url TypeURL, name string) *Resource { return g.union(url).get(name) }

// All yields the resources of a type; sorted by name within each layer.
func (g *Generation) All(url TypeURL) iter.Seq[*Resource] { return g.union(url).all() }

// Duplicates yields the names that several layers have, by type: that of the first
// layer counts.
func (g *Generation) Duplicates() iter.Seq2[TypeURL, string] {
	return func(yield func(TypeURL, string) bool) {
		g.unions.once.Do(g.unite)
		var types []TypeURL
		for url, u := range g.unions.of {
			if len(u.shared) > 0 {
				types = append(types, url)
			}
		}
		slices.Sort(types)
		for _, url := range types {
			for _, name := range sortedKeys(g.unions.of[url].shared) {
				if !yield(url, name) {
					return
				}
			}
		}
	}
}
