package stream

import (
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// removalOrder is the order of removals: a resource that refers goes before what it refers
// to. Types that are not listed come after these. Virtual hosts are removed in the
// response that changes others of their route configuration: a domain may have moved from
// one to the other.
//
//nolint:gochecknoglobals // a read-only list
var removalOrder = [...]TypeURL{ListenerType, RouteType, ExtensionType, ClusterType, EndpointType}

// keptUntilUnsubscribed reports whether a resource that a peer has is never removed: the
// peer unsubscribes when it needs it no longer. Envoy subscribes to an extension until the
// last listener that names it has drained, and answers every request of a listener whose
// extension was removed with an error. Only one that was never accepted is removed, so that
// Envoy forgets the rejected version.
func keptUntilUnsubscribed(url TypeURL) bool { return url == ExtensionType }

// keepsRemoved reports whether the peer keeps what the target does not have any more.
func (t *subscriptionState) keepsRemoved() bool {
	return t.holdRemovals || keptUntilUnsubscribed(t.typ.url)
}

// wait is since when something waits for the answer to something else.
type wait struct{ since time.Time }

func (w *wait) clear() { w.since = time.Time{} }

// gateClosed reports whether a subscription has to go on waiting. It does until the gate
// times out.
func (s *Server) gateClosed(now time.Time, t *subscriptionState, w *wait) bool {
	if w.since.IsZero() {
		w.since = now
	}
	if now.Sub(w.since) < s.cfg.GateTimeout {
		return true
	}
	s.addEvent(Event{Kind: EventGateTimeout, Type: t.typ.url, Generation: s.target.Number})
	return false
}

// NextDeadline is when Next may have something to send although no request came; zero if
// never.
func (s *Server) NextDeadline() time.Time {
	first := s.retryAt
	for _, t := range s.order {
		for k := range t.states() {
			if k.pending == nil {
				continue
			}
			for _, w := range [...]wait{k.pending.addWait, k.pending.removeWait} {
				if w.since.IsZero() {
					continue
				}
				if d := w.since.Add(s.cfg.GateTimeout); first.IsZero() || d.Before(first) {
					first = d
				}
			}
		}
	}
	return first
}

// nextAdd returns the next response that adds or updates, or nil.
func (s *Server) nextAdd(now time.Time, t *subscriptionState) *Response {
	if !t.reconciled || t.suspended {
		return nil
	}
	if t.pending != nil && len(t.pending.retries) > 0 {
		return s.nextRetry(now, t)
	}
	if !t.hasAdditions() {
		if t.pending != nil {
			t.pending.addWait.clear()
		}
		return nil
	}
	p := t.ensurePending()
	ready := s.readyEndpoints(t)
	blocked := s.busy(t) || s.blockedByAdditions(t)
	if ready != nil && !t.awaitingResponse && !s.anyReady(t, ready) {
		blocked, ready = true, nil
	}
	if blocked && s.gateClosed(now, t, &p.addWait) {
		return nil
	}
	p.addWait.clear()
	r := &sentResponse{}
	var rest []*Resource
	r.resources, rest, r.retry = s.chooseResources(t, ready)
	p.newCount = max(0, p.newCount-len(r.resources))
	if p.add = rest; len(rest) == 0 {
		p.add = nil
	}
	if t.routeConfig != "" {
		r.removed, p.remove = s.removals(t), nil
		if r.len() == 0 && t.awaitingResponse {
			r.removed = []string{t.absentHost()}
		}
	}
	if r.len() == 0 {
		if !t.awaitingResponse {
			s.completeIfIdle(t)
			return nil
		}
		r.retry = false
	}
	return s.send(now, t, r)
}

// chooseResources takes from the additions what fits into a response. The rest are those
// that do not fit or are not ready, without the names that have a resourceState.
func (s *Server) chooseResources(t *subscriptionState, ready func(string) bool) (list, rest []*Resource, retry bool) {
	p := t.pending
	limit := s.cfg.MaxResponse
	switch {
	case t.routeConfig != "":
		limit = 1 << 62 // a domain may move from one virtual host to another
	case t.typ.url == ExtensionType:
		// One in a response: Envoy ACKs a version that it has rejected if it is sent
		// again, so that of several a rejected one could not be found.
		limit = 0
		p.add = emptyLast(p.add)
	}
	if ready == nil && len(p.states) == 0 {
		size := 0
		for i, r := range p.add {
			if size += len(r.Body) + len(r.Name); size > limit && i > 0 {
				return p.add[:i:i], p.add[i:], false
			}
		}
		return p.add, nil, len(p.add) == 0
	}
	size, full := 0, false
	fits := func(r *Resource) bool {
		n := len(r.Body) + len(r.Name)
		full = full || size+n > limit && len(list) > 0
		if !full {
			size += n
			list = append(list, r)
		}
		return !full
	}
	for _, r := range p.add {
		if p.states[r.Name] != nil || !t.sub.has(r.Name) {
			continue
		}
		if ready != nil && !ready(r.Name) || !fits(r) {
			rest = append(rest, r)
		}
	}
	retry = len(list) == 0
	for _, name := range sortedKeys(p.states) {
		e := p.states[name]
		if e.todo != opAdd || ready != nil && !ready(name) {
			continue
		}
		var res *Resource
		if res, e.todo = s.desired(t, name, e); e.todo == opAdd && fits(res) {
			retry = retry && e.unknown
		}
	}
	slices.SortFunc(list, byName)
	return list, rest, retry
}

// emptyLast has extensions whose configuration is empty, and so has no effect, behind all others. What
// moves from one extension to another is then in the one that it comes to before it is gone from the
// other. Peers apply responses in their order.
func emptyLast(list []*Resource) []*Resource {
	isEmpty := func(r *Resource) bool { return isEmptyExtension(r.Body) }
	first := slices.IndexFunc(list, isEmpty)
	if first < 0 || !slices.ContainsFunc(list[first:], func(r *Resource) bool { return !isEmpty(r) }) {
		return list
	}
	out := slices.Clone(list) // others have the list, too
	slices.SortStableFunc(out, func(a, b *Resource) int {
		switch x, y := isEmpty(a), isEmpty(b); {
		case x == y:
			return 0
		case x:
			return 1
		default:
			return -1
		}
	})
	return out
}

// extensionTypedConfig is the field of envoy.config.core.v3.TypedExtensionConfig with the Any.
const extensionTypedConfig = 2

// isEmptyExtension reports whether a TypedExtensionConfig has a configuration without any field.
func isEmptyExtension(body []byte) bool {
	config, ok := lastBytes(body, extensionTypedConfig)
	if !ok {
		return false
	}
	value, ok := lastBytes(config, anyValue)
	return ok && len(value) == 0
}

// lastBytes is the content of the last field of a number; empty if there is none. It is false for
// what is no message.
func lastBytes(b []byte, field protowire.Number) (content []byte, ok bool) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeField(b)
		if n < 0 {
			return nil, false
		}
		if num == field && typ == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(b)
			content, _ = protowire.ConsumeBytes(b[tag:])
		}
		b = b[n:]
	}
	return content, true
}

// readyEndpoints tells which endpoints may be sent while updates of clusters are pending:
// those of other clusters. Nil if all may.
func (s *Server) readyEndpoints(t *subscriptionState) func(name string) bool {
	if t.typ.url != EndpointType {
		return nil
	}
	c := s.typeOf(ClusterType)
	if c == nil || !c.hasAdditions() {
		return nil
	}
	return func(name string) bool { return !s.clusterPending(c, t, name) }
}

// clusterPending reports whether an update of the cluster is pending: its endpoints are
// sent behind it. Endpoints for which a cluster already waits are sent at once.
func (*Server) clusterPending(c *typeState, t *subscriptionState, name string) bool {
	if e := t.stateOf(name); e != nil && e.forced {
		return false
	}
	if _, due := find(t.pending.forced, name); due {
		return false
	}
	if c.pending == nil {
		return false
	}
	if e := c.pending.states[name]; e != nil {
		return e.todo == opAdd
	}
	_, comes := find(c.pending.add, name)
	return comes
}

func (s *Server) anyReady(t *subscriptionState, ready func(string) bool) bool {
	for _, r := range t.pending.add {
		if t.pending.states[r.Name] == nil && ready(r.Name) {
			return true
		}
	}
	for name, e := range t.pending.states {
		if e.todo == opAdd && ready(name) {
			return true
		}
	}
	return false
}

// busy reports whether a subscription must wait for the answer to its own last response.
// Endpoints need not: they change often, and clusters wait for them. Nor need extensions,
// of which each has a response of its own.
func (s *Server) busy(t *subscriptionState) bool {
	if t.pending == nil {
		return false
	}
	if t.typ.url != EndpointType && t.typ.url != ExtensionType {
		return t.pending.waiting()
	}
	for _, r := range t.pending.sent {
		if !r.accepted && r.retry && len(r.removed) == 0 {
			return true
		}
	}
	return t.pending.unanswered() >= maxInflight
}

// blockedByAdditions reports whether something that the type refers to is not accepted
// yet.
func (s *Server) blockedByAdditions(t *subscriptionState) bool {
	switch t.typ.url {
	case ExtensionType:
		return s.arriving(ClusterType)
	case ListenerType:
		return s.arriving(ClusterType) || s.arriving(ExtensionType)
	case RouteType, VirtualHostType:
		return s.arriving(ClusterType) || s.arriving(ListenerType)
	default:
		return false
	}
}

// arriving reports whether an addition of a type is pending or unanswered. Retries after a
// NACK do not count: a NACK opens the gate.
func (s *Server) arriving(url TypeURL) bool {
	t := s.typeOf(url)
	if t == nil || !t.requested {
		return false
	}
	for k := range t.states() {
		if k.hasAdditions() {
			return true
		}
		if k.pending != nil && slices.ContainsFunc(k.pending.sent, func(r *sentResponse) bool {
			return !r.accepted && !r.retry && (len(r.resources) > 0 || len(r.removed) == 0 || k.routeConfig != "")
		}) {
			return true
		}
	}
	return false
}

// leaving reports whether a removal of a type is pending or unanswered.
func (s *Server) leaving(url TypeURL) bool {
	t := s.typeOf(url)
	if t == nil {
		return false
	}
	if t.hasRemovals() {
		return true
	}
	return t.pending != nil && slices.ContainsFunc(t.pending.sent, func(r *sentResponse) bool { return !r.accepted && len(r.removed) > 0 })
}

// nextRemove returns the next response that removes, or nil.
func (s *Server) nextRemove(now time.Time, t *subscriptionState) *Response {
	if !t.hasRemovals() {
		if t.pending != nil {
			t.pending.removeWait.clear()
		}
		return nil
	}
	p := t.pending
	var missing []string // a peer that subscribes to a missing name may wait for an answer
	for name, e := range p.states {
		if e.todo == opRemove && e.acked == nil && e.lastSent == nil && !e.unknown {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return s.send(now, t, &sentResponse{removed: missing, retry: true})
	}
	if (p.waiting() || s.blockedByRemovals(t)) && s.gateClosed(now, t, &p.removeWait) {
		return nil
	}
	p.removeWait.clear()
	gone := s.removals(t)
	if p.remove = nil; len(gone) == 0 {
		s.completeIfIdle(t)
		return nil
	}
	return s.send(now, t, &sentResponse{removed: gone})
}

// removals are the names to remove; sorted.
func (*Server) removals(t *subscriptionState) []string {
	if len(t.pending.states) == 0 {
		return t.pending.remove
	}
	var gone []string
	for _, name := range t.pending.remove {
		if t.pending.states[name] == nil && t.sub.has(name) {
			gone = append(gone, name)
		}
	}
	for name, e := range t.pending.states {
		if e.todo == opRemove {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	return gone
}

func (s *Server) blockedByRemovals(t *subscriptionState) bool {
	for _, o := range s.order {
		if s.arriving(o.url) {
			return true
		}
	}
	for _, url := range removalOrder {
		if url == t.typ.url {
			return false
		}
		if s.leaving(url) {
			return true
		}
	}
	return false
}
