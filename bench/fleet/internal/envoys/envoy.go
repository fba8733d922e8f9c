package envoys

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/wire"
)

// envoy is one proxy of the fleet.
type envoy struct {
	fleet *Fleet
	index int

	// Times are in nanoseconds since 1970, 0 is never.
	first, last atomic.Int64 // message of this stream
	ready       atomic.Bool  // has all it has asked for
	up          atomic.Int64 // when it was opened, 0 while there is none
	seenProbe   atomic.Uint32
	seenAt      atomic.Int64

	mu     sync.Mutex // guards all following fields
	stream *wire.Stream
	held   [kinds][]uint32 // by name: an entry's id, nothing or subscribed
	asked  [kinds]bool
	got    [kinds]bool // some response of that kind
	lack   [kinds]int  // names that have been asked for and have not come
	split  int         // route configurations whose hosts travel by themselves
}

// open asks for what an Envoy asks for first; one that was connected before
// lists all it has.
func (e *envoy) open(s *wire.Stream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stream = s
	e.first.Store(0)
	node := e.fleet.cfg.Node(e.index)
	if !e.got[Clusters] {
		e.asked[Clusters] = true
		e.send(newRequest(typeURLs[Clusters]).node(node))
		return
	}
	for k := range kinds {
		if !e.asked[k] {
			continue
		}
		r := newRequest(typeURLs[k])
		if k == Clusters {
			r.node(node)
		}
		for name, id := range e.held[k] {
			if id == nothing {
				continue
			}
			text := e.fleet.catalog.text(k, uint32(name))
			if k == Endpoints || k == Routes {
				r.subscribe(text)
			}
			if id >= firstEntry {
				r.has(text, e.fleet.catalog.entry(id).version)
			}
		}
		e.send(r)
	}
}

func (e *envoy) send(r *request) {
	e.fleet.sent.Add(int64(len(r.b)))
	e.stream.Send(r.b)
}

var responses = sync.Pool{New: func() any { return &response{} }} //nolint:gochecknoglobals // buffers of all streams

// Message implements [wire.Handler].
func (e *envoy) Message(msg []byte) {
	now := time.Now().UnixNano()
	if e.fleet.cfg.Tap != nil {
		e.fleet.cfg.Tap(msg)
	}
	r, _ := responses.Get().(*response)
	defer responses.Put(r)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := r.scan(msg); err != nil {
		e.fleet.fail(err)
		return
	}
	k, ok := kindOf(r.typeURL)
	if !ok {
		e.fleet.fail(errors.New("a response of an unknown type " + string(r.typeURL)))
		return
	}
	e.first.CompareAndSwap(0, now)
	e.last.Store(now)
	e.fleet.count(k, len(msg), r)
	fault := e.apply(k, r, now)
	e.got[k] = true
	ack := newRequest(typeURLs[k]).answer(r.nonce)
	if fault != "" {
		e.fleet.counts[k].Rejects.Add(1)
		e.fleet.fail(errors.New("refused: " + fault))
		ack.refuse(fault)
	}
	e.send(ack)
	e.next()
}

// apply takes the resources of a response, or none of them if one is at fault.
func (e *envoy) apply(k Kind, r *response, now int64) (fault string) {
	found := make([]*entry, 0, 16)
	for _, raw := range r.resources {
		en, err := e.fleet.catalog.find(k, raw)
		switch {
		case err != nil:
			return err.Error()
		case en.fault != "":
			return en.fault
		case en.vhds && !e.fleet.cfg.VHDS:
			return "vhds: only 'DELTA_GRPC' is supported as api_type"
		}
		found = append(found, en)
	}
	wanted := &request{}
	for _, en := range found {
		e.hold(k, en, wanted)
		if p := e.fleet.probe.Load(); en.probe != 0 && en.probe == p && e.seenProbe.Load() != p {
			e.seenAt.Store(now)
			e.seenProbe.Store(p)
		}
	}
	for _, name := range r.removed {
		if id, ok := e.fleet.catalog.known(k, name); ok {
			e.drop(k, id, wanted)
		}
	}
	if len(wanted.b) > 0 {
		to := Endpoints
		if k == Listeners {
			to = Routes
		}
		e.asked[to] = true
		e.send(&request{b: append(newRequest(typeURLs[to]).b, wanted.b...)})
	}
	return ""
}

func (e *envoy) at(k Kind, name uint32) *uint32 {
	if n := int(name) + 1; n > len(e.held[k]) {
		grown := make([]uint32, max(n, min(n+n/8, e.fleet.catalog.size(k))))
		copy(grown, e.held[k])
		e.held[k] = grown
	}
	return &e.held[k][name]
}

// hold takes one resource, and asks for what it refers to.
func (e *envoy) hold(k Kind, en *entry, wanted *request) {
	at := e.at(k, en.name)
	before := *at
	switch before {
	case en.id:
		e.fleet.counts[k].Repeated.Add(1)
	case subscribed:
		e.lack[k]--
	}
	*at = en.id
	if k == Routes {
		if before >= firstEntry && e.fleet.catalog.entry(before).vhds {
			e.split--
		}
		if en.vhds {
			e.split++
		}
	}
	to := Endpoints
	if k == Listeners {
		to = Routes
	}
	for _, ref := range en.refs {
		if at := e.at(to, ref); *at == nothing {
			*at = subscribed
			e.lack[to]++
			wanted.subscribe(e.fleet.catalog.text(to, ref))
		}
	}
	// What a listener no longer refers to is asked for no more.
	if k == Listeners && before >= firstEntry && before != en.id {
		for _, ref := range e.fleet.catalog.entry(before).refs {
			e.leave(Routes, ref, wanted)
		}
	}
}

// drop is a removal by the server.
func (e *envoy) drop(k Kind, name uint32, wanted *request) {
	at := e.at(k, name)
	before := *at
	*at = nothing
	if before == subscribed {
		e.lack[k]--
	}
	if before < firstEntry {
		return
	}
	en := e.fleet.catalog.entry(before)
	if en.vhds {
		e.split--
	}
	to := Endpoints
	if k == Listeners {
		to = Routes
	}
	for _, ref := range en.refs {
		e.leave(to, ref, wanted)
	}
}

// leave unsubscribes from a name that nothing refers to any more.
func (e *envoy) leave(k Kind, name uint32, wanted *request) {
	from := Clusters
	if k == Routes {
		from = Listeners
	}
	for _, id := range e.held[from] {
		if id < firstEntry {
			continue
		}
		if slices.Contains(e.fleet.catalog.entry(id).refs, name) {
			return
		}
	}
	at := e.at(k, name)
	if *at == nothing {
		return
	}
	if *at == subscribed {
		e.lack[k]--
	} else if e.fleet.catalog.entry(*at).vhds {
		e.split--
	}
	*at = nothing
	wanted.unsubscribe(e.fleet.catalog.text(k, name))
}

// next asks for the next type when the one before it is there, as an Envoy that
// starts does.
func (e *envoy) next() {
	if e.got[Clusters] && e.lack[Endpoints] == 0 && !e.asked[Listeners] {
		e.asked[Listeners] = true
		e.send(newRequest(typeURLs[Listeners]))
	}
	if e.split > 0 && !e.asked[Hosts] {
		e.asked[Hosts] = true
		e.send(newRequest(typeURLs[Hosts]))
	}
	e.ready.Store(e.got[Listeners] && e.lack[Endpoints] == 0 && e.lack[Routes] == 0 && (e.split == 0 || e.got[Hosts]))
}

// Closed implements [wire.Handler].
func (e *envoy) Closed(err error) {
	e.up.Store(0)
	e.fleet.ended(err)
}
