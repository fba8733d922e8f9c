package stream

import (
	"slices"
	"time"
)

// Virtual hosts that travel by themselves (VHDS) have one subscription a stream,
// which names no route configuration. So what a peer has of one is known here by
// the route configurations that it was sent: one that it did not have before, or
// had whole, has no virtual hosts, whatever was sent for it earlier, and waits
// for some.

// tablesIn notes, before they are sent, which route configurations a response
// brings that begin without virtual hosts, and which come whole.
func (s *Server) tablesIn(t *track, r *response) (anew map[string]bool) {
	if t.typ.url != RouteType {
		return nil
	}
	for _, res := range r.list {
		if !res.Hosts && !s.hasGroup(res.Name) {
			continue
		}
		begins := false
		if res.Hosts {
			was := t.will(res.Name)
			_, due := find(t.w.due, res.Name)
			e := t.entry(res.Name)
			// The form of one that the peer only listed is not known, and what one that was
			// refused whole has left behind is not sure.
			begins = was == nil || !was.Hosts || due || e != nil && e.forced || s.group(res.Name).whole
		}
		if !res.Hosts || begins {
			if anew == nil {
				anew = map[string]bool{}
			}
			anew[res.Name] = begins
		}
	}
	return anew
}

// tablesSent lets the virtual hosts follow that are needed, and forgets those
// that are not.
func (s *Server) tablesSent(anew map[string]bool) {
	for _, table := range sortedKeys(anew) {
		g := s.group(table)
		if !anew[table] {
			g.sleep()
			g.whole = true
			continue
		}
		g.whole, g.again, g.owed, g.begins = false, true, true, true
		w := g.open() // what was refused is tried again, beside what else it begins with
		w.suspects = nil
		for name, e := range w.diff {
			if e.unknown {
				g.goes(name)
			}
			*e = entry{acked: e.acked, listed: e.listed, last: e.last}
		}
		for _, name := range g.gone { // whatever is said of it on the way does not count
			e := g.at(name)
			e.last, e.unknown, e.forced = nil, true, true
		}
		s.looked = nil
	}
}

// goneBehind notes what is removed behind a table that is not answered yet.
func (s *Server) goneBehind(t *track, r *response) {
	if routes := s.typeOf(RouteType); t.table == "" || len(r.gone) == 0 || routes == nil || routes.last(t.table) == nil {
		return
	}
	for _, name := range r.gone {
		if name != t.none() {
			t.goes(name)
		}
	}
}

// goes notes a name that the peer may have once the table comes.
func (t *track) goes(name string) {
	if at, there := slices.BinarySearch(t.gone, name); !there {
		t.gone = slices.Insert(t.gone, at, name)
	}
}

// tablesTaken notes of which tables all that was removed behind them is gone.
func (s *Server) tablesTaken(t *track, r *response, but map[string]string) {
	hosts := s.typeOf(VirtualHostType)
	if t.typ.url != RouteType || hosts == nil {
		return
	}
	for _, res := range r.list {
		_, refused := but[res.Name]
		if g := hosts.groups[res.Name]; g != nil && res.Hosts && !refused && t.last(res.Name) == nil {
			g.gone = nil
		}
	}
}

func (s *Server) hasGroup(table string) bool {
	t := s.typeOf(VirtualHostType)
	return t != nil && t.groups[table] != nil
}

// group gives the virtual hosts of a route configuration. They are kept before
// the peer asks for virtual hosts at all, which it does when it has the first
// route configuration that needs them.
func (s *Server) group(table string) *track {
	t := s.typeOf(VirtualHostType)
	if t == nil {
		var err error
		if t, err = s.addType(VirtualHostType); err != nil {
			return &track{typ: &typeState{url: VirtualHostType}, table: table} // it cannot ask for them either
		}
	}
	g := t.groups[table]
	if g == nil {
		g = &track{typ: t, table: table, sub: subscription{wildcard: true}}
		if t.groups == nil {
			t.groups = map[string]*track{}
		}
		t.groups[table] = g
		s.looked = nil
	}
	return g
}

// dropGroups forgets the virtual hosts of route configurations that the peer gave
// up: when it asks for one again, it has none.
func (s *Server) dropGroups(tables map[string]bool) {
	t := s.typeOf(VirtualHostType)
	if t == nil || len(tables) == 0 {
		return
	}
	for table := range tables {
		delete(t.groups, table)
	}
	t.forgetTables(func(table string) bool { return tables[table] })
}

// sleep leaves everything as it is, until the track is awake.
func (t *track) sleep() {
	t.asleep = true
	w := t.w
	// What it begins with is sent once more, unless that is on its way.
	if t.owed || w != nil && len(w.due) > 0 || t.begins && (w == nil || !w.waiting()) {
		t.again, t.owed = true, false
	}
	if w == nil {
		return
	}
	if len(w.add)+len(w.remove)+len(w.suspects)+len(w.diff) > 0 {
		t.full = true
	}
	w.add, w.due, w.remove, w.suspects = nil, nil, nil, nil
	w.addWait.clear()
	for _, e := range w.diff {
		t.again = t.again || e.forced
		e.todo, e.suspect = opNone, false
	}
}

// awake reports whether virtual hosts of a route configuration are to be sent:
// the peer asked for some, and has it without them. Those that come before it are
// lost, the removed ones for ever: Envoy has them again when it comes.
func (s *Server) awake(t *track) bool {
	routes := s.typeOf(RouteType)
	if !t.typ.opened || t.whole || routes == nil {
		return false
	}
	want := s.target.Get(RouteType, t.table)
	if want == nil || !want.Hosts {
		return false
	}
	// The form of one that the peer only listed is not known, unless it is this one.
	has := routes.will(t.table)
	return has != nil && (has.Hosts || has.Version == want.Version)
}

// awaited reports whether the peer may be waiting for a first virtual host, in
// vain: it refused the table that it is to have, and goes on with the one before.
func (s *Server) awaited(t *track) bool {
	routes := s.typeOf(RouteType)
	if !t.begins || routes == nil || !s.refuses(routes, t.table) {
		return false
	}
	has := routes.will(t.table)
	return has != nil && (has.Hosts || has.Body == nil)
}

// refuses reports whether the peer refused what it is to have of a name, and has
// what it keeps instead, or will have it by what is on its way.
func (s *Server) refuses(t *typeState, name string) bool {
	e := t.entry(name)
	return e != nil && e.refused != "" && e.todo == opNone && !e.suspect && e.refused == s.target.Get(t.url, name).version()
}

// adopt makes the groups of what the peer has from before this stream.
func (s *Server) adopt(t *typeState) {
	routes := s.typeOf(RouteType)
	if t.adopted || !t.opened || routes == nil || !routes.looked {
		return
	}
	t.adopted = true
	listed, sure := s.listedTables(t)
	for _, table := range routes.sub.set.all() {
		if t.groups[table] != nil {
			continue
		}
		acked := routes.peek(table).acked // not what it is sent: it may refuse that
		waits := acked != nil && acked.Hosts
		if acked != nil && acked.Body == nil { // its form is not known, unless it is this one
			if want := routes.seen.get(table); want.version() == acked.Version {
				waits = want.Hosts
			} else if waits = s.refuses(routes, table); !waits {
				t.adopted = false
			}
		}
		if !listed[table] && !waits {
			continue
		}
		g := s.group(table)
		if !sure[table] { // it may be waiting for the first one
			g.owed, g.begins = true, true
			g.open()
		}
	}
	if !t.adopted {
		return
	}
	// Of others it has nothing that counts.
	t.forgetTables(func(table string) bool { return t.groups[table] == nil })
}

// listedTables are the tables of which the peer lists virtual hosts, and of these
// those of which it surely has some: what is not believed may be lost.
func (s *Server) listedTables(t *typeState) (listed, sure map[string]bool) {
	listed, sure = map[string]bool{}, map[string]bool{}
	doubted := map[string]bool{}
	for _, name := range s.cfg.Distrust[t.url] {
		doubted[name] = true
	}
	last := ""
	for _, v := range t.listed {
		table, _, _ := cutHost(v.Name)
		if table == last && sure[table] {
			continue
		}
		last, listed[table] = table, true
		sure[table] = sure[table] || !doubted[v.Name]
	}
	return listed, sure
}

// inOrder are the groups by name.
func (t *typeState) inOrder() []*track {
	switch len(t.groups) {
	case 0:
		return nil
	case 1:
		for _, g := range t.groups {
			return []*track{g}
		}
	}
	out := make([]*track, 0, len(t.groups))
	for _, table := range sortedKeys(t.groups) {
		out = append(out, t.groups[table])
	}
	return out
}

// nextHosts gives the next response with virtual hosts, of one route
// configuration: were there two, and one refused, it would be a matter of luck
// what becomes of the other.
func (s *Server) nextHosts(now time.Time, t *typeState) *Response {
	if !t.opened || !slices.ContainsFunc(t.inOrder(), (*track).busyOrAdding) {
		return nil
	}
	for _, g := range t.inOrder() {
		if g.asleep && g.owed {
			return s.send(now, g, &response{gone: []string{g.none()}})
		}
		if !s.awake(g) {
			continue
		}
		if r := s.nextAdd(now, g); r != nil {
			return r
		}
	}
	return nil
}

// none is the name of a virtual host that is not there: that it is gone is the
// answer to who waits for one, for an empty answer does not count.
func (t *track) none() string { return t.table + "/none" }

func (t *track) busyOrAdding() bool { return t.w != nil || t.owed }
