package stream

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
)

// mergedSet has the resources of one type in a generation, of all its layers. Immutable;
// nil is empty.
type mergedSet struct {
	sets   []*Set   // none of them empty
	layers []string // of the layers, one a set
	// duplicates are the names that more than one set has: the resource of the first set
	// counts. Usually nil.
	duplicates map[string]struct{}
	// private means that it belongs to one stream: deltas with it are not cached.
	private bool

	mu     sync.Mutex // guards deltas
	deltas map[deltaKey]*subscribedDelta
}

// merged returns the resources of a type.
func (g *Generation) merged(url TypeURL) *mergedSet {
	if g == nil {
		return nil
	}
	g.mergedSets.once.Do(g.mergeLayers)
	return g.mergedSets.of[url]
}

// hosts returns the virtual hosts of a route configuration.
func (g *Generation) hosts(routeConfig string) *mergedSet {
	if g == nil {
		return nil
	}
	g.mergedSets.once.Do(g.mergeLayers)
	return g.mergedSets.hosts[routeConfig]
}

func (g *Generation) mergeLayers() {
	of, hosts := map[TypeURL]*mergedSet{}, map[string]*mergedSet{}
	for _, l := range g.Layers {
		for t, s := range l.Types {
			if s.Len() == 0 {
				continue
			}
			of[t] = of[t].append(s, l.Name)
			if t == VirtualHostType {
				for routeConfig, set := range s.routeConfigs() {
					hosts[routeConfig] = hosts[routeConfig].append(set, l.Name)
				}
			}
		}
	}
	for t, m := range of {
		of[t] = m.finish()
	}
	for t, m := range hosts {
		hosts[t] = m.finish()
	}
	g.mergedSets.of, g.mergedSets.hosts = of, hosts
}

// append adds a set while the merged set is built.
func (m *mergedSet) append(s *Set, layer string) *mergedSet {
	if m == nil {
		m = &mergedSet{}
	}
	m.sets, m.layers = append(m.sets, s), append(m.layers, layer)
	return m
}

// finish ends the building of a merged set. If it has one set only, all generations with
// that set share the merged set and the deltas that it caches.
func (m *mergedSet) finish() *mergedSet {
	if len(m.sets) > 1 {
		m.findDuplicates()
		return m
	}
	s := m.sets[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.single == nil || s.single.layers[0] != m.layers[0] {
		s.single = m
	}
	return s.single
}

// findDuplicates finds the names that several sets have. Sets whose ranges of names do not
// overlap are not searched: clusters of the two directions, virtual hosts of different
// route configurations.
func (m *mergedSet) findDuplicates() {
	if len(m.sets) < 2 {
		return
	}
	order := slices.SortedFunc(slices.Values(m.sets), func(a, b *Set) int { return strings.Compare(a.list[0].Name, b.list[0].Name) })
	var overlapping []*Set
	end := ""
	for _, s := range order {
		if len(overlapping) > 0 && s.list[0].Name > end {
			m.findDuplicatesIn(overlapping)
			overlapping = overlapping[:0]
		}
		overlapping = append(overlapping, s)
		end = max(end, s.list[len(s.list)-1].Name)
	}
	m.findDuplicatesIn(overlapping)
}

// findDuplicatesIn is findDuplicates for sets that overlap. All but the largest set are
// searched.
func (m *mergedSet) findDuplicatesIn(sets []*Set) {
	if len(sets) < 2 {
		return
	}
	big := 0
	for i, s := range sets {
		if s.Len() > sets[big].Len() {
			big = i
		}
	}
	seen := map[string]struct{}{}
	for i, s := range sets {
		if i == big {
			continue
		}
		for r := range s.All() {
			_, twice := seen[r.Name]
			if twice || sets[big].Get(r.Name) != nil {
				if m.duplicates == nil {
					m.duplicates = map[string]struct{}{}
				}
				m.duplicates[r.Name] = struct{}{}
			}
			seen[r.Name] = struct{}{}
		}
	}
}

// get returns a resource by name, or nil.
func (m *mergedSet) get(name string) *Resource {
	if m == nil {
		return nil
	}
	for _, s := range m.sets {
		if r := s.Get(name); r != nil {
			return r
		}
	}
	return nil
}

// len is how many resources there are.
func (m *mergedSet) len() int {
	if m == nil {
		return 0
	}
	n := 0
	for _, s := range m.sets {
		n += s.Len()
	}
	if len(m.duplicates) > 0 {
		for _, s := range m.sets {
			for name := range m.duplicates {
				if s.Get(name) != nil {
					n--
				}
			}
		}
		n += len(m.duplicates)
	}
	return n
}

// all yields the resources, sorted by name within each layer.
func (m *mergedSet) all() iter.Seq[*Resource] {
	return func(yield func(*Resource) bool) {
		if m == nil {
			return
		}
		for _, s := range m.sets {
			for r := range s.All() {
				if _, ok := m.duplicates[r.Name]; ok && m.get(r.Name) != r {
					continue
				}
				if !yield(r) {
					return
				}
			}
		}
	}
}

// sameSets reports whether two merged sets consist of the same sets.
func (m *mergedSet) sameSets(o *mergedSet) bool {
	return m == o || m != nil && o != nil && slices.Equal(m.sets, o.sets)
}

// diff is what changed from prev to m. The comparison of two sets is shared by all merged
// sets that have them.
func (m *mergedSet) diff(prev *mergedSet) setDelta {
	if m.sameSets(prev) {
		return setDelta{}
	}
	if d, ok := m.diffOneSet(prev); ok {
		return d
	}
	names := map[string]struct{}{}
	add := func(d setDelta) {
		for _, r := range d.changed {
			names[r.Name] = struct{}{}
		}
		for _, name := range d.removed {
			names[name] = struct{}{}
		}
	}
	was, now := prev.withoutSetsOf(m), m.withoutSetsOf(prev)
	for i, s := range now.sets {
		if j := slices.Index(was.layers, now.layers[i]); j >= 0 {
			add(s.diff(was.sets[j]))
			was.sets, was.layers = slices.Delete(was.sets, j, j+1), slices.Delete(was.layers, j, j+1)
		} else {
			add(s.diff(nil))
		}
	}
	for _, s := range was.sets {
		add((*Set)(nil).diff(s))
	}
	for _, o := range []*mergedSet{m, prev} { // for these, the order of the sets counts
		if o != nil {
			maps.Copy(names, o.duplicates)
		}
	}
	var d setDelta
	for _, name := range sortedKeys(names) {
		old, r := prev.get(name), m.get(name)
		switch {
		case r == nil && old != nil:
			d.removed = append(d.removed, name)
		case r != nil && old.version() != r.Version:
			d.changed = append(d.changed, r)
		}
	}
	return d
}

// diffOneSet is diff for the case that exactly one set differs and no name is in two sets.
func (m *mergedSet) diffOneSet(prev *mergedSet) (setDelta, bool) {
	if m == nil || prev == nil || len(m.sets) != len(prev.sets) || len(m.duplicates)+len(prev.duplicates) > 0 {
		return setDelta{}, false
	}
	at := -1
	for i := range m.sets {
		if m.sets[i] == prev.sets[i] {
			continue
		}
		if at >= 0 {
			return setDelta{}, false
		}
		at = i
	}
	return m.sets[at].diff(prev.sets[at]), true
}

// withoutSetsOf is a merged set without the sets that another one has, too.
func (m *mergedSet) withoutSetsOf(o *mergedSet) *mergedSet {
	if m == nil {
		return &mergedSet{}
	}
	if o == nil {
		return &mergedSet{sets: slices.Clone(m.sets), layers: slices.Clone(m.layers)}
	}
	has := map[*Set]struct{}{}
	for _, s := range o.sets {
		has[s] = struct{}{}
	}
	out := &mergedSet{}
	for i, s := range m.sets {
		if _, ok := has[s]; !ok {
			out.sets, out.layers = append(out.sets, s), append(out.layers, m.layers[i])
		}
	}
	return out
}
