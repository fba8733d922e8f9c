package stream

import (
	"slices"
	"time"
)

// subscriptionState is what is known of one list of resources on one stream: those of a
// type, or the virtual hosts of one route configuration.
//
// Almost always a peer has exactly what it is to have. Then the state is three pointers to
// what all equal peers share. Resources in flight are kept by reference, too: as the lists
// of the responses that have them. Only names that differ have a resourceState: they were
// rejected, for example, or do not exist.
type subscriptionState struct {
	typ         *typeState
	routeConfig string // of virtual hosts; else empty

	sub subscription
	// The peer has what is in have, of the names in haveScope; pending says what differs.
	have      *mergedSet
	haveScope subscription
	// want is what the peer is to have, and holdRemovals whether nothing may be removed,
	// as of the last reconcile; reconciled means that there was one.
	want                     *mergedSet
	holdRemovals, reconciled bool
	removalsHeld             bool // removals wait until they are allowed

	awaitingResponse bool // the peer waits for a response, even an empty one
	// resendAll means that everything is to be sent, whatever the peer has. suspended
	// means that nothing is sent now; inline is why, for virtual hosts: the route
	// configuration was sent with them inline.
	resendAll, suspended, inline bool
	// initial means that the peer has accepted none of these virtual hosts yet, and may be
	// waiting for them.
	initial bool
	// unconfirmedRemovals are the virtual hosts that were removed behind a route
	// configuration which the peer has not accepted yet. If it rejects it, it keeps them
	// for the next one.
	unconfirmedRemovals []string
	// compareAll means that the next reconcile compares everything.
	compareAll bool
	count      int // of the resources that the peer has

	pending *pending // nil if nothing is pending
}

// pending is what is left to send or to wait for, and which names differ.
type pending struct {
	add      []*Resource // to send; sorted by name, as all lists here
	newCount int         // how many of add the peer does not have in any version
	forced   []*Resource // the part of add that is sent even if the peer has it
	remove   []string    // to remove

	// sent are the unanswered responses, and the accepted ones that are not in have yet,
	// oldest first.
	sent []*sentResponse
	// nackedClusters are NACKed responses with clusters. Envoy may have applied them in
	// part, so that some clusters may wait for endpoints.
	nackedClusters []*sentResponse

	// states are the names that differ: for them, only their resourceState counts.
	states  map[string]*resourceState
	retries [][]string // groups of names, each retried alone after a NACK
	recount bool       // count is not exact any more

	addWait, removeWait wait
}

// sentResponse is a response that was sent.
type sentResponse struct {
	nonce      string
	generation uint64
	resources  []*Resource
	removed    []string
	accepted   bool
	retry      bool // sent after a NACK: no other type waits for it
	at         time.Time
	netAdded   int        // how many more resources the peer has after it
	endpoints  *mergedSet // of a response with clusters: the endpoints of that time
}

// find returns what the response says of a name; a nil resource means removed.
func (r *sentResponse) find(name string) (res *Resource, ok bool) {
	if i, ok := find(r.resources, name); ok {
		return r.resources[i], true
	}
	_, ok = slices.BinarySearch(r.removed, name)
	return nil, ok
}

func (r *sentResponse) len() int { return len(r.resources) + len(r.removed) }

// names are the names in the response; sorted.
func (r *sentResponse) names() []string {
	out := make([]string, 0, r.len())
	for _, res := range r.resources {
		out = append(out, res.Name)
	}
	if len(r.removed) > 0 {
		out = append(out, r.removed...)
		slices.Sort(out)
	}
	return out
}

// ensurePending returns pending, to be written to.
func (t *subscriptionState) ensurePending() *pending {
	if t.pending == nil {
		t.pending = &pending{}
	}
	return t.pending
}

// waiting reports whether an answer is outstanding.
func (p *pending) waiting() bool {
	return slices.ContainsFunc(p.sent, func(r *sentResponse) bool { return !r.accepted })
}

// unanswered is how many answers are outstanding.
func (p *pending) unanswered() int {
	n := 0
	for _, r := range p.sent {
		if !r.accepted {
			n++
		}
	}
	return n
}

// stateOf returns the resourceState of a name, or nil.
func (t *subscriptionState) stateOf(name string) *resourceState {
	if t.pending == nil {
		return nil
	}
	return t.pending.states[name]
}

// ackedResource returns what the peer is known to have of a name without a resourceState.
func (t *subscriptionState) ackedResource(name string) *Resource {
	if t.pending != nil {
		for _, r := range slices.Backward(t.pending.sent) {
			if !r.accepted {
				continue
			}
			if res, ok := r.find(name); ok {
				return res
			}
		}
	}
	if t.sub.has(name) && t.haveScope.has(name) {
		return t.have.get(name)
	}
	return nil
}

// lastUnanswered returns the newest unanswered response with a name, or nil.
func (t *subscriptionState) lastUnanswered(name string) *sentResponse {
	if t.pending == nil {
		return nil
	}
	for _, r := range slices.Backward(t.pending.sent) {
		if !r.accepted {
			if _, ok := r.find(name); ok {
				return r
			}
		}
	}
	return nil
}

// expected returns what the peer has of a name if it accepts everything that is in flight.
func (t *subscriptionState) expected(name string) *Resource {
	if e := t.stateOf(name); e != nil {
		if e.lastSent != nil {
			res, _ := e.lastSent.find(name)
			return res
		}
		return e.acked
	}
	if t.pending != nil {
		for _, r := range slices.Backward(t.pending.sent) {
			if res, ok := r.find(name); ok {
				return res
			}
		}
	}
	if t.sub.has(name) && t.haveScope.has(name) {
		return t.have.get(name)
	}
	return nil
}

// inSent reports whether a response that still counts has a name.
func (t *subscriptionState) inSent(name string) bool {
	return t.pending != nil && slices.ContainsFunc(t.pending.sent, func(r *sentResponse) bool {
		_, ok := r.find(name)
		return ok
	})
}

// peekState is ensureState without keeping the result.
func (t *subscriptionState) peekState(name string) *resourceState {
	if e := t.stateOf(name); e != nil {
		return e
	}
	e := &resourceState{acked: t.ackedResource(name), lastSent: t.lastUnanswered(name)}
	e.everHad = e.acked != nil
	if e.acked != nil && e.acked.Body == nil {
		// Same version, same bytes: now we know what to go back to.
		if r := t.want.get(name); r.version() == e.acked.Version {
			e.acked = r
		}
	}
	if t.pending != nil {
		_, e.forced = find(t.pending.forced, name)
	}
	return e
}

// ensureState returns the resourceState of a name, and makes one from what is known if
// there is none. From then on, only that counts for the name.
func (t *subscriptionState) ensureState(name string) *resourceState {
	if e := t.stateOf(name); e != nil {
		return e
	}
	e := t.peekState(name)
	t.putState(name, e)
	return e
}

func (t *subscriptionState) putState(name string, e *resourceState) {
	p := t.ensurePending()
	if p.states == nil {
		p.states = map[string]*resourceState{}
	}
	p.states[name] = e
	p.recount = true
}

// idle reports whether nothing is left to send or to wait for.
func (t *subscriptionState) idle() bool {
	p := t.pending
	if p == nil {
		return !t.awaitingResponse
	}
	if t.awaitingResponse || len(p.add)+len(p.remove)+len(p.retries) > 0 || p.waiting() {
		return false
	}
	for _, e := range p.states {
		if e.todo != opNone {
			return false
		}
	}
	return true
}

// hasAdditions reports whether something is left to add or change.
func (t *subscriptionState) hasAdditions() bool {
	p := t.pending
	if p == nil {
		return t.awaitingResponse
	}
	if t.awaitingResponse || len(p.add) > 0 {
		return true
	}
	for _, e := range p.states {
		if e.todo == opAdd || e.todo == opRemove && t.routeConfig != "" {
			return true
		}
	}
	return t.routeConfig != "" && len(p.remove) > 0
}

// hasRemovals reports whether something is left to remove.
func (t *subscriptionState) hasRemovals() bool {
	if t.pending == nil || t.routeConfig != "" {
		return false
	}
	if len(t.pending.remove) > 0 {
		return true
	}
	for _, e := range t.pending.states {
		if e.todo == opRemove {
			return true
		}
	}
	return false
}

// maxAccepted bounds the accepted responses that are kept apart.
const maxAccepted = 8

// mergeAccepted merges the accepted responses into one, so that they do not pile up for a
// peer that is never idle. It stops at the first unanswered response: those behind it are
// newer.
func (p *pending) mergeAccepted() {
	first := slices.IndexFunc(p.sent, func(r *sentResponse) bool { return !r.accepted })
	if first < 0 {
		first = len(p.sent)
	}
	if first < maxAccepted {
		return
	}
	all := &sentResponse{accepted: true}
	gone := map[string]struct{}{}
	for _, r := range p.sent[:first] {
		all.resources = mergeLists(r.resources, all.resources)
		for _, res := range r.resources {
			delete(gone, res.Name)
		}
		for _, name := range r.removed {
			gone[name] = struct{}{}
		}
		if all.endpoints = r.endpoints; len(r.removed) > 0 {
			all.resources = slices.DeleteFunc(slices.Clone(all.resources), func(res *Resource) bool {
				_, is := gone[res.Name]
				return is
			})
		}
	}
	all.removed = sortedKeys(gone)
	p.sent = slices.Replace(p.sent, 0, first, all)
}
