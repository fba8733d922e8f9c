package stream

import (
	"iter"
	"slices"
)

// Get gives a resource, or nil.
func (g *Generation) Get(url TypeURL, name string) *Resource { return g.merged(url).get(name) }

// All yields the resources of a type; sorted by name within each layer.
func (g *Generation) All(url TypeURL) iter.Seq[*Resource] { return g.merged(url).all() }

// Duplicates yields the names that several layers have, by type. The resource of the first
// layer counts.
func (g *Generation) Duplicates() iter.Seq2[TypeURL, string] {
	return func(yield func(TypeURL, string) bool) {
		g.mergedSets.once.Do(g.mergeLayers)
		var types []TypeURL
		for url, m := range g.mergedSets.of {
			if len(m.duplicates) > 0 {
				types = append(types, url)
			}
		}
		slices.Sort(types)
		for _, url := range types {
			for _, name := range sortedKeys(g.mergedSets.of[url].duplicates) {
				if !yield(url, name) {
					return
				}
			}
		}
	}
}
