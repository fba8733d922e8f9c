package stream

import (
	"slices"
	"strconv"
	"time"
)

// send builds a response and notes what is in it.
func (s *Server) send(now time.Time, t *track, r *response) *Response {
	w := t.open()
	s.nonce++
	r.nonce = strconv.FormatUint(s.nonce, 10)
	r.at = now
	r.generation = s.target.Number
	r.added = t.more(r)
	t.owed = false
	anew := s.tablesIn(t, r)
	for name, e := range w.diff {
		if _, in := r.find(name); in {
			e.last, e.forced, e.minded, e.todo = r, false, false, opNone
		}
	}
	w.due = dropFrom(w.due, r.list)
	if w.unanswered() >= maxInflight {
		i := slices.IndexFunc(w.sent, func(o *response) bool { return !o.accepted })
		s.forget(t, w.sent[i])
	}
	w.compact()
	w.sent = append(w.sent, r)
	t.typ.status.sent, t.typ.status.sentAt = r.generation, now.UnixNano()
	s.event(Event{Kind: EventSent, Type: t.typ.url, Generation: r.generation, Names: r.len(), Removal: len(r.gone) > 0})
	s.follow(t, r)
	s.goneBehind(t, r)
	s.tablesSent(anew)
	return &Response{
		TypeURL: t.typ.url, Nonce: r.nonce, SystemVersion: strconv.FormatUint(r.generation, 10),
		Resources: r.list, Removed: r.gone,
	}
}

// more is how many more resources the peer will have with a response.
func (t *track) more(r *response) int {
	n := 0
	if t.have == nil && len(t.w.sent) == 0 && len(t.w.diff) == 0 {
		n = len(r.list)
	} else {
		for _, res := range r.list {
			if t.will(res.Name) == nil {
				n++
			}
		}
	}
	for _, name := range r.gone {
		if t.will(name) != nil {
			n--
		}
	}
	return n
}

// maxUnfollowed bounds the responses that are kept because the peer has not
// asked yet for what follows from them.
const maxUnfollowed = 64

// follow notes what the peer needs once more because of what was sent.
func (s *Server) follow(t *track, r *response) {
	var next TypeURL
	switch t.typ.url {
	case ClusterType:
		next = EndpointType
		r.endpoints = s.target.union(EndpointType)
	case ListenerType:
		// Within a stream Envoy shares its routes between the old and the new
		// listener; after a reconnect it may have neither.
		if !t.typ.reconnected || t.typ.answered {
			return
		}
		next = RouteType
	default:
		return
	}
	if f := s.typeOf(next); f != nil && f.looked {
		s.force(&f.track, following(&f.track, r))
	} else if len(t.typ.unfollowed) < maxUnfollowed {
		// It may say that it has what follows, and would not be sent it.
		t.typ.unfollowed = append(t.typ.unfollowed, r)
	}
}

// followLate is follow for what was sent before the peer asked for this type.
func (s *Server) followLate(t *track) {
	leader := map[TypeURL]TypeURL{EndpointType: ClusterType, RouteType: ListenerType}[t.typ.url]
	l := s.typeOf(leader)
	if l == nil || len(l.unfollowed) == 0 {
		return
	}
	late := l.unfollowed
	l.unfollowed = nil
	if t.have == nil {
		return // it is sent everything anyway
	}
	for _, r := range late {
		for _, res := range following(t, r) {
			e := t.at(res.Name)
			e.forced = true
		}
	}
}

// following lists what follows from a response, as far as it is asked for.
func following(t *track, r *response) []*Resource {
	if t.typ.url == RouteType {
		return routesOf(r.list, t)
	}
	var list []*Resource
	for _, res := range r.list {
		if !t.sub.has(res.Name) {
			continue
		}
		if x := r.endpoints.get(res.Name); x != nil {
			list = append(list, x)
		}
	}
	return list
}

// routesOf lists the route configurations that listeners refer to, as far as
// they are asked for; all where it is not known.
func routesOf(listeners []*Resource, routes *track) []*Resource {
	names := map[string]struct{}{}
	for _, l := range listeners {
		if l.Refs == nil {
			return routes.seen.plan(nil, routes.sub).add
		}
		for _, name := range l.Refs {
			names[name] = struct{}{}
		}
	}
	var list []*Resource
	for _, name := range sortedKeys(names) {
		if r := routes.seen.get(name); r != nil && routes.sub.has(name) {
			list = append(list, r)
		}
	}
	return list
}

// forget gives up waiting for an answer that a peer owes since long.
func (s *Server) forget(t *track, r *response) {
	w := t.w
	var names []string
	for _, name := range r.names() {
		if e := t.peek(name); e.last == r && t.sub.has(name) {
			names = append(names, name)
		}
	}
	w.sent = slices.DeleteFunc(w.sent, func(o *response) bool { return o == r })
	for _, name := range names {
		e := t.at(name)
		e.last, e.unknown = nil, true
		s.evaluate(t, name, e)
	}
	w.recount = true
}

// accept notes that the peer has what a response said, but for some names.
func (s *Server) accept(t *track, r *response, but map[string]string) {
	w := t.w
	r.accepted, t.begins = true, false
	s.tablesTaken(t, r, but)
	t.count += r.added
	for name, e := range w.diff {
		res, in := r.find(name)
		if _, refused := but[name]; !in || refused {
			continue
		}
		e.acked = res
		e.listed = e.listed || res != nil
		if e.last == r {
			e.last, e.unknown, e.suspect = nil, false, false
		}
		if e.refused != "" && res != nil && t.seen.get(name).version() == res.Version {
			e.refused, e.reason = "", ""
		}
		s.evaluate(t, name, e)
	}
}

// drop takes a response off those that count.
func (w *work) drop(r *response) {
	w.sent = slices.DeleteFunc(w.sent, func(o *response) bool { return o == r })
}
