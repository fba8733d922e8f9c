package stream

import (
	"maps"
	"slices"
	"weak"
)

// maxDiffs bounds the differences that a Generation remembers: streams of a
// class are at most a few generations behind.
const maxDiffs = 8

// Diff is what changed from prev to g, by type; types without a change are
// absent. It is computed once for a pair and shared, so that a push costs the
// streams of a class one comparison together. Read-only.
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
	d := compare(prev, g)
	if g.diffs == nil || len(g.diffs) >= maxDiffs {
		g.diffs = map[weak.Pointer[Generation]]map[TypeURL]Delta{}
	}
	g.diffs[key] = d
	return d
}

func compare(prev, next *Generation) map[TypeURL]Delta {
	out := map[TypeURL]Delta{}
	for t, now := range next.Types {
		if d := compareType(prev.Types[t], now); len(d.Changed)+len(d.Removed) > 0 {
			out[t] = d
		}
	}
	for t, was := range prev.Types {
		if _, ok := next.Types[t]; !ok && len(was) > 0 {
			out[t] = Delta{Removed: slices.Sorted(maps.Keys(was))}
		}
	}
	return out
}

func compareType(was, now map[string]Resource) Delta {
	var d Delta
	for name, r := range now {
		if old, ok := was[name]; !ok || old.Version != r.Version {
			d.Changed = append(d.Changed, name)
		}
	}
	for name := range was {
		if _, ok := now[name]; !ok {
			d.Removed = append(d.Removed, name)
		}
	}
	slices.Sort(d.Changed)
	slices.Sort(d.Removed)
	return d
}
