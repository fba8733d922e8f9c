package registry

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Reason is why a removal is held.
type Reason string

// The reasons for which a removal is held back.
const (
	// SourceShrank: too large a part of the source's objects is gone within the window.
	SourceShrank Reason = "too many objects of the source disappeared within a short time"
	// ServiceShrank: too large a part of a service's endpoints is gone within the window.
	ServiceShrank Reason = "too many endpoints of a service disappeared within a short time"
	// SourceEmpty: the source had objects and has none.
	SourceEmpty Reason = "the source became empty"
	// NamespaceEmpty: a namespace that the source is bound to had objects and
	// has none.
	NamespaceEmpty Reason = "a namespace that is bound to the source became empty"
	// GatewaysGone: networks had gateways, and none has one.
	GatewaysGone Reason = "all gateways of networks disappeared"
)

// byPerson reports whether only a person can release the removal.
func (r Reason) byPerson() bool { return r == SourceEmpty || r == NamespaceEmpty || r == GatewaysGone }

// hold is one object whose removal is held or, for a service that lost endpoints, whose change
// is held.
type hold struct {
	since  time.Time
	reason Reason
	origin *mesh.Origin
	// lost are the addresses that a service lost, or the networks without their gateways, joined;
	// empty where the object itself is gone.
	lost string
}

// holds are the held objects of one source.
type holds map[mesh.Key]hold

// limits are the guard's settings.
type limits struct {
	share        float64
	floor        int
	confirmAfter time.Duration
	emptyAfter   time.Duration // 0: never
	bound        []string
}

// tooMany reports whether losing n of total is held back.
func (l limits) tooMany(n, total int) bool {
	return n >= l.floor && float64(n) > l.share*float64(total)
}

// reading is one decision of the guard: prev is what is in force of a source, held the objects
// of it that the source no longer had, next what it has now.
type reading struct {
	limits
	prev, next *mesh.Fragment
	// diff is what differs between them; nil where it has not been looked for.
	diff *mesh.Difference
	held holds
	// snapshot is the state of the mesh, to know whose endpoints they are; or
	// nil.
	snapshot *mesh.Snapshot
	// window has what the source lost before.
	window *window
	now    time.Time

	// steady means that everything that was held is still missing; ripe is the part of it that
	// is confirmed. Both are set by confirm.
	steady bool
	ripe   map[mesh.Key]bool
}

// decide returns what is in force now, and what of it is held. It is pure.
//
// A removal is held if it and what was lost in the window before are too large a part of what
// there was when the window began. What came meanwhile is deducted from that loss, and removals
// that were confirmed do not count.
//
// A removal is confirmed when two readings with enough time between them lack the same
// objects, and nothing that was held came back in between: then the source is still changing.
func (r *reading) decide() (*mesh.Fragment, holds) {
	if r.prev == nil {
		return r.next, nil
	}
	if r.diff == nil {
		r.diff = mesh.Compare(r.prev, r.next)
	}
	removed := r.diff.Removed()
	losses := r.inlineLosses()
	r.holdNetworks(losses)
	if len(removed) == 0 && len(losses) == 0 {
		return r.next, nil
	}
	r.confirm(removed, losses)
	if moved := r.diff.Moved(); len(moved) > 0 {
		removed = slices.DeleteFunc(removed, func(x mesh.Removal) bool { return moved[x.Key] })
	}
	found := losses
	r.holdEmpty(removed, found)
	r.holdShrunken(removed, found)
	r.holdEndpoints(removed, found)
	held := holds{}
	keys := map[mesh.Key]bool{}
	for key, h := range found {
		h = r.aged(h, key)
		if r.confirmed(h, key) {
			continue
		}
		held[key] = h
		keys[key] = true
	}
	if len(held) == 0 {
		return r.next, nil
	}
	return mesh.Keep(r.prev, r.next, keys), held
}

// confirm finds out whether everything that was held is still missing, and what of it is
// missing for the second time, long enough after the first. Confirmed removals do not count
// when the others are decided.
func (r *reading) confirm(removed []mesh.Removal, losses holds) {
	gone := map[mesh.Key]bool{}
	for _, x := range removed {
		gone[x.Key] = true
	}
	for key := range losses {
		gone[key] = true
	}
	for key := range r.held {
		if !gone[key] {
			return
		}
	}
	r.steady = true
	r.ripe = map[mesh.Key]bool{}
	for key, h := range r.held {
		if h.lost == "" && !h.reason.byPerson() && r.now.Sub(h.since) >= r.confirmAfter {
			r.ripe[key] = true
		}
	}
}

// open reports whether a removal is not decided yet.
func (r *reading) open(x mesh.Removal, found holds) bool {
	_, ok := found[x.Key]
	return !ok && !r.ripe[x.Key]
}

// holdEmpty holds what a source, or a namespace bound to it, lost by becoming
// empty.
func (r *reading) holdEmpty(removed []mesh.Removal, found holds) {
	begin := r.window.begin(r.now)
	if r.next.Empty() && r.window.source.now+r.window.source.lost(begin) >= r.floor {
		for _, x := range removed {
			found[x.Key] = hold{reason: SourceEmpty, origin: x.Origin}
		}
		return
	}
	for _, ns := range r.bound {
		if !slices.ContainsFunc(removed, func(x mesh.Removal) bool { return x.Key.Namespace == ns }) {
			continue
		}
		t := r.window.namespaces[ns]
		if t.now+r.growthOf(ns, removed) > 0 || t.now+t.lost(begin) < r.floor {
			continue
		}
		for _, x := range removed {
			if x.Key.Namespace == ns {
				found[x.Key] = hold{reason: NamespaceEmpty, origin: x.Origin}
			}
		}
	}
}

// growthOf is how many more objects the namespace has, or fewer if it is negative.
func (r *reading) growthOf(ns string, removed []mesh.Removal) int {
	n := 0
	for _, key := range r.diff.Added() {
		if key.Namespace == ns {
			n++
		}
	}
	for _, x := range removed {
		if x.Key.Namespace == ns {
			n--
		}
	}
	return n
}

// holdShrunken holds everything that is missing, if it is too large a part of the source.
func (r *reading) holdShrunken(removed []mesh.Removal, found holds) {
	fresh := 0
	for _, x := range removed {
		if r.open(x, found) {
			fresh++
		}
	}
	source := &r.window.source
	if lost := source.lost(r.window.begin(r.now)); fresh == 0 || !r.tooMany(fresh+lost, source.now+lost) {
		return
	}
	for _, x := range removed {
		if r.open(x, found) {
			found[x.Key] = hold{reason: SourceShrank, origin: x.Origin}
		}
	}
}

// holdEndpoints holds the missing workloads, if they are too large a part of a service.
func (r *reading) holdEndpoints(removed []mesh.Removal, found holds) {
	if r.snapshot == nil {
		return
	}
	lost := map[*mesh.Service]int{}
	services := make([][]*mesh.Service, len(removed))
	for i, x := range removed {
		if x.Key.Kind != mesh.KindWorkloadEntry || r.ripe[x.Key] {
			continue
		}
		services[i] = servicesOf(r.snapshot, x.Key, x.Origin, nil)
		for _, svc := range services[i] {
			lost[svc]++
		}
	}
	over := map[*mesh.Service]bool{}
	for svc, n := range lost {
		before := r.window.lostOf(svc, r.now)
		over[svc] = r.tooMany(n+before, len(r.snapshot.EndpointsOf(svc))+before)
	}
	for i, x := range removed {
		if r.open(x, found) && slices.ContainsFunc(services[i], func(svc *mesh.Service) bool { return over[svc] }) {
			found[x.Key] = hold{reason: ServiceShrank, origin: x.Origin}
		}
	}
}

// otherSource reports whether the object in force is of another source than the
// one that is gone: then it stays.
func otherSource(gone, inForce *mesh.Origin) bool {
	return gone != nil && inForce != nil && gone.Source != inForce.Source
}

// inlineLosses are the services that lost too many of the endpoints written in
// them.
func (r *reading) inlineLosses() holds {
	out := holds{}
	for _, l := range r.diff.LostInline() {
		before := r.window.lostOf(l.Service, r.now)
		if !r.tooMany(len(l.Addresses)+before, len(l.Service.Inline)+before) {
			continue
		}
		h := out[l.Service.Key] // of another host of the same object, or none
		h.reason, h.origin = ServiceShrank, l.Service.Origin
		h.lost += strings.Join(l.Addresses, " ") + ";"
		out[l.Service.Key] = h
	}
	return out
}

// holdNetworks holds the networks as they were, if too many of them lost all their gateways. They
// count as a whole: with some of them, hosts would connect to addresses of another site. One network
// may be a whole site, so that there is no least number of them where none is left.
func (r *reading) holdNetworks(found holds) {
	loss := r.diff.LostGateways()
	if loss == nil {
		return
	}
	h := hold{origin: loss.Networks.Origin, lost: strings.Join(loss.Names, " ")}
	switch {
	case loss.Left == 0:
		h.reason = GatewaysGone
	case r.tooMany(len(loss.Names), loss.Had):
		h.reason = SourceShrank
	default:
		return
	}
	found[loss.Networks.Key] = h
}

// aged sets since when a hold exists.
func (r *reading) aged(h hold, key mesh.Key) hold {
	before, ok := r.held[key]
	if ok && r.steady && before.lost == h.lost && before.reason.byPerson() == h.reason.byPerson() {
		h.since = before.since
	} else {
		h.since = r.now
	}
	return h
}

// confirmed reports whether a hold exists for long enough.
func (r *reading) confirmed(h hold, key mesh.Key) bool {
	if _, again := r.held[key]; !again {
		return false
	}
	after := r.confirmAfter
	if h.reason.byPerson() {
		if after = r.emptyAfter; after == 0 {
			return false
		}
	}
	return r.now.Sub(h.since) >= after
}

// list returns what is held, sorted.
func (h holds) list() []Held {
	out := make([]Held, 0, len(h))
	for _, key := range slices.SortedFunc(maps.Keys(h), mesh.Key.Compare) {
		x := h[key]
		out = append(out, Held{Key: key, Origin: x.origin, Reason: x.reason, Since: x.since})
	}
	return out
}

// byPerson reports whether only a person can release one of them.
func (h holds) byPerson() bool {
	for _, x := range h {
		if x.reason.byPerson() {
			return true
		}
	}
	return false
}

// reasons are those of all holds, sorted.
func (h holds) reasons() []Reason {
	seen := map[Reason]bool{}
	for _, x := range h {
		seen[x.reason] = true
	}
	return slices.SortedFunc(maps.Keys(seen), cmp.Compare[Reason])
}
