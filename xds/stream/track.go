package stream

import (
	"slices"
	"time"
)

// track is what is known of one list of resources on one stream: those of a
// type, or the virtual hosts of one route configuration.
//
// Almost always a peer has exactly what it shall have; then its track is three
// pointers to what all peers of its kind share. What is on the way is said by
// reference too: "this list was sent in that response". Only names that are
// different, for they were refused, or are asked for in vain, have an entry of
// their own.
type track struct {
	typ   *typeState
	table string // the route configuration, of virtual hosts; else empty

	sub subscription
	// The peer has what have says of the names in scope; but for what work says.
	have  *union
	scope subscription
	// seen is what the peer shall have, and hold whether nothing may be removed,
	// as of the last look; looked means that there was one.
	seen         *union
	hold, looked bool
	held         bool // there is more to be removed, once that is allowed

	owed bool // the peer waits for a first answer, be it empty
	// again means that everything is to be sent, whatever the peer has, and asleep
	// that nothing is for now; whole is why, for these virtual hosts: their route
	// configuration was sent with them in it.
	again, asleep, whole bool
	// begins means that the peer has accepted none of these virtual hosts yet, and
	// may be waiting for that.
	begins bool
	// gone are the virtual hosts that were removed behind a table which the peer has
	// not taken yet: if it does not, it keeps them for the next one.
	gone []string
	// full means that everything is to be compared at the next look.
	full  bool
	count int // how many the peer has

	w *work // nil while there is none
}

// work is what is left to do, or to hear, and what is different.
type work struct {
	add    []*Resource // to be sent; sorted by name, as all lists here
	added  int         // how many of these are new to the peer
	due    []*Resource // those of add that are sent even if the peer has them
	remove []string    // to be removed

	// sent are the responses of which the answer is awaited, and those that say
	// better than have what the peer has, oldest first.
	sent []*response
	// refused are responses of clusters that may have been applied in part, so that
	// some may wait for endpoints.
	refused []*response

	// diff are the names that are different: what is said here of others does not
	// hold for them.
	diff     map[string]*entry
	suspects [][]string // groups to be tried alone, after a refusal
	recount  bool       // count is not exact

	addWait, removeWait wait
}

// response is one that was sent.
type response struct {
	nonce      string
	generation uint64
	list       []*Resource
	gone       []string
	accepted   bool
	retry      bool // what follows a refusal: nobody waits for it
	at         time.Time
	added      int    // how many more the peer has with it
	endpoints  *union // those of that moment, of clusters
}

// find gives what the response says of a name; nil that it is gone.
func (r *response) find(name string) (res *Resource, ok bool) {
	if i, ok := find(r.list, name); ok {
		return r.list[i], true
	}
	_, ok = slices.BinarySearch(r.gone, name)
	return nil, ok
}

func (r *response) len() int { return len(r.list) + len(r.gone) }

// names are those that the response has; sorted.
func (r *response) names() []string {
	out := make([]string, 0, r.len())
	for _, res := range r.list {
		out = append(out, res.Name)
	}
	if len(r.gone) > 0 {
		out = append(out, r.gone...)
		slices.Sort(out)
	}
	return out
}

// open gives the track's work, to be written to.
func (t *track) open() *work {
	if t.w == nil {
		t.w = &work{}
	}
	return t.w
}

// waiting reports whether an answer is outstanding.
func (w *work) waiting() bool {
	return slices.ContainsFunc(w.sent, func(r *response) bool { return !r.accepted })
}

// unanswered is how many answers are outstanding.
func (w *work) unanswered() int {
	n := 0
	for _, r := range w.sent {
		if !r.accepted {
			n++
		}
	}
	return n
}

// entry gives the entry of a name, or nil.
func (t *track) entry(name string) *entry {
	if t.w == nil {
		return nil
	}
	return t.w.diff[name]
}

// accepted gives what the peer is known to have of a name without an entry.
func (t *track) accepted(name string) *Resource {
	if t.w != nil {
		for _, r := range slices.Backward(t.w.sent) {
			if !r.accepted {
				continue
			}
			if res, ok := r.find(name); ok {
				return res
			}
		}
	}
	if t.sub.has(name) && t.scope.has(name) {
		return t.have.get(name)
	}
	return nil
}

// last gives the newest unanswered response that has a name, or nil.
func (t *track) last(name string) *response {
	if t.w == nil {
		return nil
	}
	for _, r := range slices.Backward(t.w.sent) {
		if !r.accepted {
			if _, ok := r.find(name); ok {
				return r
			}
		}
	}
	return nil
}

// will gives what the peer has of a name once it has answered everything.
func (t *track) will(name string) *Resource {
	if e := t.entry(name); e != nil {
		if e.last != nil {
			res, _ := e.last.find(name)
			return res
		}
		return e.acked
	}
	if t.w != nil {
		for _, r := range slices.Backward(t.w.sent) {
			if res, ok := r.find(name); ok {
				return res
			}
		}
	}
	if t.sub.has(name) && t.scope.has(name) {
		return t.have.get(name)
	}
	return nil
}

// mentioned reports whether a response that counts still has a name.
func (t *track) mentioned(name string) bool {
	return t.w != nil && slices.ContainsFunc(t.w.sent, func(r *response) bool {
		_, ok := r.find(name)
		return ok
	})
}

// peek is at without keeping the entry.
func (t *track) peek(name string) *entry {
	if e := t.entry(name); e != nil {
		return e
	}
	e := &entry{acked: t.accepted(name), last: t.last(name)}
	e.listed = e.acked != nil
	if e.acked != nil && e.acked.Body == nil {
		// Same version, same bytes: now we know what to go back to.
		if r := t.seen.get(name); r.version() == e.acked.Version {
			e.acked = r
		}
	}
	if t.w != nil {
		_, e.forced = find(t.w.due, name)
	}
	return e
}

// at gives the entry of a name, made from what is known if there is none. From
// now on the name is nobody else's.
func (t *track) at(name string) *entry {
	if e := t.entry(name); e != nil {
		return e
	}
	e := t.peek(name)
	t.put(name, e)
	return e
}

func (t *track) put(name string, e *entry) {
	w := t.open()
	if w.diff == nil {
		w.diff = map[string]*entry{}
	}
	w.diff[name] = e
	w.recount = true
}

// quiet reports whether nothing is left to send or to wait for.
func (t *track) quiet() bool {
	w := t.w
	if w == nil {
		return !t.owed
	}
	if t.owed || len(w.add)+len(w.remove)+len(w.suspects) > 0 || w.waiting() {
		return false
	}
	for _, e := range w.diff {
		if e.todo != opNone {
			return false
		}
	}
	return true
}

// adding reports whether something is left to be added or changed.
func (t *track) adding() bool {
	w := t.w
	if w == nil {
		return t.owed
	}
	if t.owed || len(w.add) > 0 {
		return true
	}
	for _, e := range w.diff {
		if e.todo == opAdd || e.todo == opRemove && t.table != "" {
			return true
		}
	}
	return t.table != "" && len(w.remove) > 0
}

// removing reports whether something is left to be removed.
func (t *track) removing() bool {
	if t.w == nil || t.table != "" {
		return false
	}
	if len(t.w.remove) > 0 {
		return true
	}
	for _, e := range t.w.diff {
		if e.todo == opRemove {
			return true
		}
	}
	return false
}

// maxAccepted bounds the accepted responses that are kept apart.
const maxAccepted = 8

// compact makes one of the accepted responses, so that a peer that is never
// quiet does not make them grow. Those that are unanswered are newer than what
// they are put behind, or have an older answer outstanding: then they stay.
func (w *work) compact() {
	first := slices.IndexFunc(w.sent, func(r *response) bool { return !r.accepted })
	if first < 0 {
		first = len(w.sent)
	}
	if first < maxAccepted {
		return
	}
	all := &response{accepted: true}
	gone := map[string]struct{}{}
	for _, r := range w.sent[:first] {
		all.list = mergeLists(r.list, all.list)
		for _, res := range r.list {
			delete(gone, res.Name)
		}
		for _, name := range r.gone {
			gone[name] = struct{}{}
		}
		if all.endpoints = r.endpoints; len(r.gone) > 0 {
			all.list = slices.DeleteFunc(slices.Clone(all.list), func(res *Resource) bool {
				_, is := gone[res.Name]
				return is
			})
		}
	}
	all.gone = sortedKeys(gone)
	w.sent = slices.Replace(w.sent, 0, first, all)
}
