package stream

import "iter"

// lookAll brings all tracks up to the target. Nothing is done for a target
// before the peer can be sent something again: who does not read is merged
// forward when it returns.
func (s *Server) lookAll() {
	if s.target == nil || s.looked == s.target {
		return
	}
	s.looked = s.target // what is found may make another look necessary
	for _, t := range s.order {
		if t.url == VirtualHostType {
			s.adopt(t)
			for _, g := range t.inOrder() {
				s.look(g)
				s.settle(g)
			}
			s.settleHosts(t)
			continue
		}
		s.look(&t.track)
		s.settle(&t.track)
	}
}

// look brings a track up to the target.
func (s *Server) look(t *track) {
	if !t.typ.opened {
		return
	}
	want, hold := s.target.union(t.typ.url), s.target.HoldRemovals
	if t.table != "" {
		if !s.awake(t) {
			t.sleep()
			t.owed = s.awaited(t)
			return
		}
		t.asleep = false
		want = s.target.hosts(t.table)
	}
	switch {
	case !t.looked:
		s.lookFirst(t, want)
		s.lookAt(t, want, hold)
		t.dueAtFirst()
	case t.again || t.full || t.hold != hold || !t.seen.same(want):
		s.lookAt(t, want, hold)
	case t.w == nil && t.have == t.seen:
		t.seen, t.have = want, want // the same sets, and what others remember of them
	default:
		t.seen = want
	}
}

// lookAt finds what is to be done.
func (s *Server) lookAt(t *track, want *union, hold bool) {
	if t.w != nil || t.again || t.full {
		s.lookAgain(t, want, hold)
		return
	}
	s.lookClear(t, want, hold)
}

// lookClear is lookAt for a track of which nothing is under way.
func (*Server) lookClear(t *track, want *union, hold bool) {
	p := want.plan(t.have, t.sub)
	t.seen, t.hold, t.held = want, hold, hold && len(p.remove) > 0
	switch {
	case len(p.add) == 0 && len(p.remove) == 0:
		t.have = want
	case len(p.add) == 0 && hold:
		t.have = want.keeping(t.have.pick(p.remove))
	default:
		w := t.open()
		w.add, w.added = p.add, p.added
		if !hold {
			w.remove = p.remove
		}
	}
}

// pick lists some resources by name.
func (u *union) pick(names []string) []*Resource {
	var out []*Resource
	for _, name := range names {
		if r := u.get(name); r != nil {
			out = append(out, r)
		}
	}
	return out
}

// lookAgain is lookAt for a track that is not as it shall be.
func (s *Server) lookAgain(t *track, want *union, hold bool) {
	w := t.open()
	again := t.again
	t.owed, t.begins = t.owed || again, t.begins || again
	if t.have == nil && w.idle() { // the usual beginning of virtual hosts
		t.again, t.full = false, false
		if s.lookClear(t, want, hold); again {
			w.due = w.add
		}
		return
	}
	names := t.doubtful(want, hold)
	due := w.due
	t.seen, t.hold, t.again, t.full = want, hold, false, false
	w.add, w.due, w.remove, w.added, t.held = nil, nil, nil, 0, t.held && hold
	// Of what a table begins with nothing has been taken yet, nor has been what was
	// not wanted at the last look.
	again = again || t.table != "" && t.begins && !w.waiting()
	for name, e := range w.diff {
		if again && want.get(name) != nil {
			e.forced = true
		}
		if e.again && e.refused != "" {
			// Perhaps it was another one's fault.
			e.refused, e.reason, e.again = "", "", false
		}
		s.evaluate(t, name, e)
	}
	for _, name := range sortedKeys(names) {
		if w.diff[name] != nil {
			continue
		}
		_, forced := find(due, name)
		s.place(t, name, forced || again)
	}
}

// idle reports whether nothing is under way, and nothing different.
func (w *work) idle() bool {
	return len(w.add)+len(w.due)+len(w.remove)+len(w.sent)+len(w.diff)+len(w.suspects) == 0
}

// doubtful are the names of which there may be something to do.
func (t *track) doubtful(want *union, hold bool) map[string]struct{} {
	names := map[string]struct{}{}
	add := func(list []*Resource) {
		for _, r := range list {
			if t.sub.has(r.Name) {
				names[r.Name] = struct{}{}
			}
		}
	}
	p := want.plan(t.seen, t.sub)
	if t.again || t.full || t.hold && !hold {
		p = want.plan(nil, t.sub)
		add(t.everything())
		for _, r := range t.w.sent { // what is on its way will be there, too
			add(r.list)
		}
	}
	add(p.add)
	for _, name := range p.remove {
		names[name] = struct{}{}
	}
	add(t.w.add)
	add(t.w.due)
	for _, name := range t.w.remove {
		names[name] = struct{}{}
	}
	return names
}

// place puts a name without an entry among what is to be sent or removed; names
// come in order.
func (s *Server) place(t *track, name string, forced bool) {
	w := t.w
	res, will := t.seen.get(name), t.will(name)
	switch {
	case res == nil && forced && (t.typ.url != VirtualHostType):
		e := t.at(name)
		e.forced = true
		s.evaluate(t, name, e)
	case res == nil && will != nil && t.hold:
		t.held = true
	case res == nil && will != nil:
		w.remove = append(w.remove, name)
	case res != nil && (forced || will.version() != res.Version):
		w.add = append(w.add, res)
		if forced {
			w.due = append(w.due, res)
		}
		if will == nil {
			w.added++
		}
	}
}

// lookFirst takes what the peer listed, when there is something to compare it
// with.
func (s *Server) lookFirst(t *track, want *union) {
	t.looked, t.scope = true, t.sub
	listed := t.typ.take(t.table)
	has := compareListed(want, t.sub, listed)
	switch {
	case has.exact:
		t.have = want
	case len(has.have) > 0:
		t.have = (*union)(nil).keeping(has.have)
	}
	t.count = has.n
	thereAre := t.sub.len() == 0 || !t.sub.wildcard && len(want.plan(nil, t.sub).add) == t.sub.len()
	if t.table == "" && !thereAre {
		s.askedInVain(t, want, listed)
	}
	t.seen = want
	s.followLate(t)
	for _, name := range s.cfg.Distrust[t.typ.url] {
		if t.table != "" {
			if table, _, ok := cutHost(name); !ok || table != t.table {
				continue
			}
		}
		e := t.at(name) // listed or not: it may have been applied all the same
		e.unknown = true
	}
	if t.w != nil {
		t.seen = t.have // what lookAt compares with
	}
}

// askedInVain notes the names that do not exist, and that the peer does not have
// either: it may be waiting to hear so.
func (*Server) askedInVain(t *track, want *union, listed []Version) {
	has := make(map[string]bool, len(listed))
	for _, v := range listed {
		has[v.Name] = true
	}
	for _, name := range t.sub.set.all() {
		if !has[name] && want.get(name) == nil {
			t.at(name).forced = true
		}
	}
}

// dueAtFirst notes which endpoints must not wait for clusters: those that the
// peer has none of.
func (t *track) dueAtFirst() {
	w := t.w
	switch {
	case w == nil || t.typ.url != EndpointType:
	case t.have == nil:
		w.due = w.add
	default:
		var fresh []*Resource
		for _, r := range w.add {
			if t.have.get(r.Name) == nil {
				fresh = append(fresh, r)
			}
		}
		w.due = mergeLists(w.due, fresh)
	}
}

// lookUp gives a function that is get for many names, and that numbers the places
// of all resources from 0 on; places is how many there are.
func (u *union) lookUp() (at func(name string) (r *Resource, place int), places int) {
	if u == nil {
		return func(string) (*Resource, int) { return nil, 0 }, 0
	}
	indexes := make([]map[string]int32, len(u.sets))
	for i, s := range u.sets {
		indexes[i] = s.lookUp()
		places += len(s.list)
	}
	return func(name string) (*Resource, int) {
		before := 0
		for i, s := range u.sets {
			if at, ok := indexes[i][name]; ok {
				return s.list[at], before + int(at)
			}
			before += len(s.list)
		}
		return nil, 0
	}, places
}

// places yields all resources with their places.
func (u *union) places() iter.Seq2[*Resource, int] {
	return func(yield func(*Resource, int) bool) {
		if u == nil {
			return
		}
		place := 0
		for _, s := range u.sets {
			for _, r := range s.list {
				if !yield(r, place) {
					return
				}
				place++
			}
		}
	}
}

// force has resources sent, sorted by name, even if the peer has them.
func (s *Server) force(t *track, list []*Resource) {
	if len(list) == 0 {
		return
	}
	w := t.open()
	if len(w.diff) > 0 {
		var plain []*Resource
		for _, r := range list {
			if e := w.diff[r.Name]; e != nil {
				e.forced = true
				s.evaluate(t, r.Name, e)
			} else {
				plain = append(plain, r)
			}
		}
		list = plain
	}
	for _, r := range list {
		if _, there := find(w.add, r.Name); !there && t.will(r.Name) == nil {
			w.added++
		}
	}
	w.due = mergeLists(list, w.due)
	w.add = mergeLists(list, w.add)
}
