package registry

import (
	"maps"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	// DefaultRemovalWindow is the time over which losses are summed, where nothing else is
	// said.
	DefaultRemovalWindow = 2 * time.Minute
	// windowSlots is how many parts of a window are told apart. A window begins with one of
	// them, so it is as long as was said, and up to one part longer.
	windowSlots = 24
)

// tally is a number that changes, and what it was when the parts of the window began in
// which it changed. It has as many marks as there are such parts, whatever the number of
// changes.
type tally struct {
	now   int
	marks []mark // oldest first
}

type mark struct {
	slot   int64
	before int
}

// change counts what came or went.
func (t *tally) change(slot int64, by int) {
	if by == 0 {
		return
	}
	if n := len(t.marks); n == 0 || t.marks[n-1].slot < slot {
		t.marks = append(t.marks, mark{slot, t.now})
	}
	t.now += by
}

// settle counts what came or went as if it had been so before the window: a loss that was
// confirmed is none that another one adds to.
func (t *tally) settle(by int) {
	t.now += by
	for i := range t.marks {
		t.marks[i].before += by
	}
}

// lost is by how much the number is lower than when the window began.
func (t *tally) lost(begin int64) int {
	i := slices.IndexFunc(t.marks, func(m mark) bool { return m.slot >= begin })
	if i < 0 {
		return 0
	}
	return max(0, t.marks[i].before-t.now)
}

// forget drops what is older than the window, and reports whether nothing is left.
func (t *tally) forget(begin int64) bool {
	t.marks = slices.DeleteFunc(t.marks, func(m mark) bool { return m.slot < begin })
	return len(t.marks) == 0
}

// window sums what a source lost in a time, so that a loss in many small steps is held back
// like one in a single step. What came meanwhile is deducted: instances that are replaced one
// by one are no loss. Its size and the price of a change depend on what changed in that time.
//
// The loop of the registry owns it.
type window struct {
	slot   time.Duration // the length of a part
	began  time.Time
	newest int64 // the part in which forget was called last

	source     tally            // the objects in force
	namespaces map[string]tally // those of each namespace that the source is bound to
	// services are the endpoints that services got from the source since it first changed
	// them; those without a change in the window are left out.
	services map[serviceID]tally
}

// serviceID is a host of an object.
type serviceID struct {
	key  mesh.Key
	host mesh.Hostname
}

func idOf(svc *mesh.Service) serviceID { return serviceID{svc.Key, svc.Hostname} }

func newWindow(length time.Duration, bound []string, now time.Time) *window {
	w := &window{
		slot: max(1, length/windowSlots), began: now,
		namespaces: map[string]tally{}, services: map[serviceID]tally{},
	}
	for _, ns := range bound {
		w.namespaces[ns] = tally{}
	}
	return w
}

// at is the part of a time.
func (w *window) at(now time.Time) int64 { return int64(now.Sub(w.began) / w.slot) }

// begin is the part with which the window before a time begins.
func (w *window) begin(now time.Time) int64 { return w.at(now) - windowSlots }

// first takes the first fragment of the source.
func (w *window) first(d *mesh.Difference) {
	w.source.settle(d.Growth())
	for _, key := range d.Added() {
		w.inNamespace(key, func(t *tally) { t.settle(1) })
	}
}

// accepted takes a change that is in force now. Removals of held were on hold before: they
// have been confirmed.
func (w *window) accepted(d *mesh.Difference, held holds, snapshot *mesh.Snapshot, now time.Time) {
	slot := w.at(now)
	w.forget(now)
	count := func(t *tally, key mesh.Key, by int) {
		if _, confirmed := held[key]; confirmed && by < 0 {
			t.settle(by)
		} else {
			t.change(slot, by)
		}
	}
	for _, x := range d.Removed() {
		count(&w.source, x.Key, -1)
		w.inNamespace(x.Key, func(t *tally) { count(t, x.Key, -1) })
	}
	for _, key := range d.Added() {
		count(&w.source, key, 1)
		w.inNamespace(key, func(t *tally) { count(t, key, 1) })
	}
	endpoints := func(svc *mesh.Service, key mesh.Key, by int) {
		t := w.services[idOf(svc)]
		if count(&t, key, by); len(t.marks) > 0 {
			w.services[idOf(svc)] = t
		}
	}
	for _, x := range d.Workloads() {
		if x.Old != nil && x.New != nil && maps.Equal(x.Old.Labels, x.New.Labels) {
			continue
		}
		if w := x.Old; w != nil {
			key := w.Key
			if x.New != nil {
				key = mesh.Key{} // it left services by its labels: that was not on hold
			}
			for _, svc := range servicesOf(snapshot, w.Key, w.Origin, w) {
				endpoints(svc, key, -1)
			}
		}
		if w := x.New; w != nil {
			for _, svc := range servicesOf(snapshot, w.Key, w.Origin, w) {
				endpoints(svc, w.Key, 1)
			}
		}
	}
	for _, x := range d.Services() {
		switch {
		case x.Old != nil && x.New != nil:
			endpoints(x.New, x.New.Key, len(x.New.Inline)-len(x.Old.Inline))
		case x.Old != nil:
			delete(w.services, idOf(x.Old))
		default: // it begins anew, whatever the snapshot knows of it
			delete(w.services, idOf(x.New))
		}
	}
}

// inNamespace changes what counts the objects of a key's namespace, if the source is bound to it.
func (w *window) inNamespace(key mesh.Key, change func(*tally)) {
	if t, bound := w.namespaces[key.Namespace]; bound {
		change(&t)
		w.namespaces[key.Namespace] = t
	}
}

// forget drops what is older than the window, once in each part of it.
func (w *window) forget(now time.Time) {
	at := w.at(now)
	if at == w.newest {
		return
	}
	w.newest = at
	begin := w.begin(now)
	w.source.forget(begin)
	for ns, t := range w.namespaces {
		t.forget(begin)
		w.namespaces[ns] = t
	}
	for id, t := range w.services {
		if t.forget(begin) {
			delete(w.services, id)
		} else {
			w.services[id] = t
		}
	}
}

// lostOf is how many endpoints a service lost in the window.
func (w *window) lostOf(svc *mesh.Service, now time.Time) int {
	t := w.services[idOf(svc)]
	return t.lost(w.begin(now))
}

// servicesOf are the services that select a workload of a source; none if the workload in
// force is that of another source, which has it, too.
func servicesOf(s *mesh.Snapshot, key mesh.Key, origin *mesh.Origin, w *mesh.Workload) []*mesh.Service {
	if s == nil {
		return nil
	}
	inForce, found := slices.BinarySearchFunc(s.Workloads, key, func(w *mesh.Workload, k mesh.Key) int { return w.Compare(k) })
	switch {
	case found && otherSource(origin, s.Workloads[inForce].Origin):
		return nil
	case w != nil:
		return s.ServicesOf(w)
	case found:
		return s.ServicesOf(s.Workloads[inForce])
	default:
		return nil
	}
}
