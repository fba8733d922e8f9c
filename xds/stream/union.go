package stream

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
)

// union is all resources of one type in a generation: those of all its layers.
// Immutable; nil is empty.
type union struct {
	sets  []*Set   // none of them empty
	names []string // of the layers
	// shared are the names that more than one set has: that of the first counts.
	// Nearly always nil.
	shared map[string]struct{}
	// own means that it belongs to one stream: comparisons with it are not worth
	// being remembered.
	own bool

	mu    sync.Mutex // guards plans
	plans map[planKey]*plan
}

// union gives the resources of a type.
func (g *Generation) union(url TypeURL) *union {
	if g == nil {
		return nil
	}
	g.unions.once.Do(g.unite)
	return g.unions.of[url]
}

// hosts gives the virtual hosts of a route configuration.
func (g *Generation) hosts(table string) *union {
	if g == nil {
		return nil
	}
	g.unions.once.Do(g.unite)
	return g.unions.hosts[table]
}

func (g *Generation) unite() {
	of, hosts := map[TypeURL]*union{}, map[string]*union{}
	for _, l := range g.Layers {
		for t, s := range l.Types {
			if s.Len() == 0 {
				continue
			}
			of[t] = of[t].append(s, l.Name)
			if t == VirtualHostType {
				for table, set := range s.tables() {
					hosts[table] = hosts[table].append(set, l.Name)
				}
			}
		}
	}
	for t, u := range of {
		of[t] = u.finish()
	}
	for t, u := range hosts {
		hosts[t] = u.finish()
	}
	g.unions.of, g.unions.hosts = of, hosts
}

// append adds a set to a union that is being made.
func (u *union) append(s *Set, layer string) *union {
	if u == nil {
		u = &union{}
	}
	u.sets, u.names = append(u.sets, s), append(u.names, layer)
	return u
}

// finish ends the making of a union. That of a single set is the same for all
// who have the set, so that they share what it remembers.
func (u *union) finish() *union {
	if len(u.sets) > 1 {
		u.findShared()
		return u
	}
	s := u.sets[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alone == nil || s.alone.names[0] != u.names[0] {
		s.alone = u
	}
	return s.alone
}

// findShared finds the names that several sets have. Sets that lie apart, as the
// clusters of the two directions and the hosts of different tables do, are not
// looked into.
func (u *union) findShared() {
	if len(u.sets) < 2 {
		return
	}
	order := slices.SortedFunc(slices.Values(u.sets), func(a, b *Set) int { return strings.Compare(a.list[0].Name, b.list[0].Name) })
	var cluster []*Set
	end := ""
	for _, s := range order {
		if len(cluster) > 0 && s.list[0].Name > end {
			u.findSharedIn(cluster)
			cluster = cluster[:0]
		}
		cluster = append(cluster, s)
		end = max(end, s.list[len(s.list)-1].Name)
	}
	u.findSharedIn(cluster)
}

// findSharedIn is findShared for sets that overlap: all but the biggest are
// small.
func (u *union) findSharedIn(sets []*Set) {
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
				if u.shared == nil {
					u.shared = map[string]struct{}{}
				}
				u.shared[r.Name] = struct{}{}
			}
			seen[r.Name] = struct{}{}
		}
	}
}

// get gives a resource by name, or nil.
func (u *union) get(name string) *Resource {
	if u == nil {
		return nil
	}
	for _, s := range u.sets {
		if r := s.Get(name); r != nil {
			return r
		}
	}
	return nil
}

// len is how many resources there are.
func (u *union) len() int {
	if u == nil {
		return 0
	}
	n := 0
	for _, s := range u.sets {
		n += s.Len()
	}
	if len(u.shared) > 0 {
		for _, s := range u.sets {
			for name := range u.shared {
				if s.Get(name) != nil {
					n--
				}
			}
		}
		n += len(u.shared)
	}
	return n
}

// all yields the resources, sorted by name within each layer.
func (u *union) all() iter.Seq[*Resource] {
	return func(yield func(*Resource) bool) {
		if u == nil {
			return
		}
		for _, s := range u.sets {
			for r := range s.All() {
				if _, ok := u.shared[r.Name]; ok && u.get(r.Name) != r {
					continue
				}
				if !yield(r) {
					return
				}
			}
		}
	}
}

// same reports whether two unions are made of the same sets.
func (u *union) same(o *union) bool {
	return u == o || u != nil && o != nil && slices.Equal(u.sets, o.sets)
}

// diff is what changed from prev to u. The comparison of two sets is shared by
// all unions that have them.
func (u *union) diff(prev *union) Delta {
	if u.same(prev) {
		return Delta{}
	}
	if d, ok := u.diffOfOne(prev); ok {
		return d
	}
	names := map[string]struct{}{}
	add := func(d Delta) {
		for _, r := range d.Changed {
			names[r.Name] = struct{}{}
		}
		for _, name := range d.Removed {
			names[name] = struct{}{}
		}
	}
	was, now := prev.without(u), u.without(prev)
	for i, s := range now.sets {
		if j := slices.Index(was.names, now.names[i]); j >= 0 {
			add(s.diff(was.sets[j]))
			was.sets, was.names = slices.Delete(was.sets, j, j+1), slices.Delete(was.names, j, j+1)
		} else {
			add(s.diff(nil))
		}
	}
	for _, s := range was.sets {
		add((*Set)(nil).diff(s))
	}
	for _, o := range []*union{u, prev} { // for these the order of the sets counts
		if o != nil {
			maps.Copy(names, o.shared)
		}
	}
	var d Delta
	for _, name := range sortedKeys(names) {
		old, r := prev.get(name), u.get(name)
		switch {
		case r == nil && old != nil:
			d.Removed = append(d.Removed, name)
		case r != nil && old.version() != r.Version:
			d.Changed = append(d.Changed, r)
		}
	}
	return d
}

// diffOfOne is diff where just one set differs, and no name is in two.
func (u *union) diffOfOne(prev *union) (Delta, bool) {
	if u == nil || prev == nil || len(u.sets) != len(prev.sets) || len(u.shared)+len(prev.shared) > 0 {
		return Delta{}, false
	}
	at := -1
	for i := range u.sets {
		if u.sets[i] == prev.sets[i] {
			continue
		}
		if at >= 0 {
			return Delta{}, false
		}
		at = i
	}
	return u.sets[at].diff(prev.sets[at]), true
}

// without is a union without the sets that another one has too.
func (u *union) without(o *union) *union {
	if u == nil {
		return &union{}
	}
	if o == nil {
		return &union{sets: slices.Clone(u.sets), names: slices.Clone(u.names)}
	}
	has := map[*Set]struct{}{}
	for _, s := range o.sets {
		has[s] = struct{}{}
	}
	out := &union{}
	for i, s := range u.sets {
		if _, ok := has[s]; !ok {
			out.sets, out.names = append(out.sets, s), append(out.names, u.names[i])
		}
	}
	return out
}
