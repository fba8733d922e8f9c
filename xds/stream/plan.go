package stream

import (
	"slices"
	"weak"
)

// maxPlans bounds what a union remembers of the ways to it.
const maxPlans = 32

// plan is what has to be sent so that who has one union has another, as far as
// it is asked for. Immutable, and shared by all streams that have the same way.
type plan struct {
	add    []*Resource // sorted by name
	remove []string    // sorted
	added  int         // how many of add are new
}

type planKey struct {
	from weak.Pointer[union]
	set  weak.Pointer[nameSet]
	all  bool
}

// plan gives the way from another union to this one.
func (u *union) plan(from *union, sub subscription) *plan {
	sub = sub.key()
	if u == nil || from != nil && from.own {
		return u.makePlan(from, sub)
	}
	key := planKey{weak.Make(from), weak.Make(sub.set), sub.wildcard}
	u.mu.Lock()
	defer u.mu.Unlock()
	if p, ok := u.plans[key]; ok {
		return p
	}
	p := u.makePlan(from, sub)
	if u.plans == nil || len(u.plans) >= maxPlans {
		u.plans = map[planKey]*plan{}
	}
	u.plans[key] = p
	return p
}

func (u *union) makePlan(from *union, sub subscription) *plan {
	if from == nil {
		list := u.restrict(sub)
		return &plan{add: list, added: len(list)}
	}
	p := &plan{}
	d := u.diff(from)
	p.add, p.remove = d.Changed, d.Removed
	if !sub.wildcard {
		p.add, p.remove = nil, nil
		for _, r := range d.Changed {
			if sub.has(r.Name) {
				p.add = append(p.add, r)
			}
		}
		for _, name := range d.Removed {
			if sub.has(name) {
				p.remove = append(p.remove, name)
			}
		}
	}
	for _, r := range p.add {
		if from.get(r.Name) == nil {
			p.added++
		}
	}
	return p
}

// restrict lists what is asked for, sorted by name.
func (u *union) restrict(sub subscription) []*Resource {
	if u == nil {
		return nil
	}
	var parts [][]*Resource
	for _, s := range u.sets {
		list := s.list
		if !sub.wildcard {
			list = s.among(sub.set.all())
		}
		if len(list) > 0 {
			parts = append(parts, list)
		}
	}
	if len(parts) == 0 {
		return nil
	}
	if len(parts) == 1 {
		return parts[0]
	}
	list := slices.Concat(parts...) // stable: the first set of a name counts
	slices.SortStableFunc(list, byName)
	return slices.CompactFunc(list, func(a, b *Resource) bool { return a.Name == b.Name })
}

// among lists the resources whose names are among some, which are sorted; where
// that is all of them, the list is the set's own.
func (s *Set) among(names []string) []*Resource {
	var out []*Resource
	for i, r := range s.list {
		for len(names) > 0 && names[0] < r.Name {
			names = names[1:]
		}
		if len(names) > 0 && names[0] == r.Name {
			if out != nil {
				out = append(out, r)
			}
			continue
		}
		if out == nil { // the first one that is not
			out = make([]*Resource, i, len(s.list))
			copy(out, s.list)
		}
	}
	if out == nil {
		return s.list
	}
	return out
}

// keeping is the union with what a stream has beyond it.
func (u *union) keeping(extra []*Resource) *union {
	out := &union{own: true}
	if u != nil {
		out.sets, out.names = slices.Clone(u.sets), slices.Clone(u.names)
		out.shared = u.shared
	}
	out.sets = append(out.sets, NewSet(extra))
	out.names = append(out.names, "")
	return out
}

// mergeLists is two lists in one, sorted by name; of two resources of one name
// the first list's counts.
func mergeLists(a, b []*Resource) []*Resource {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	out := make([]*Resource, 0, len(a)+len(b))
	for _, r := range a {
		for len(b) > 0 && b[0].Name < r.Name {
			out, b = append(out, b[0]), b[1:]
		}
		if len(b) > 0 && b[0].Name == r.Name {
			b = b[1:]
		}
		out = append(out, r)
	}
	return append(out, b...)
}

// dropFrom is a list without the names of another; both are sorted by name.
func dropFrom(list, gone []*Resource) []*Resource {
	if len(list) == 0 || len(gone) == 0 {
		return list
	}
	var out []*Resource
	for _, r := range list {
		for len(gone) > 0 && gone[0].Name < r.Name {
			gone = gone[1:]
		}
		if len(gone) == 0 || gone[0].Name != r.Name {
			out = append(out, r)
		}
	}
	return out
}
