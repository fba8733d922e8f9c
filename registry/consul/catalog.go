package consul

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/consul/mapping"
	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	// removalDelay is how long a removal waits for others, so that a large loss is one
	// change, which the registry's guard can hold back; removalDelayMax bounds it.
	removalDelay    = 50 * time.Millisecond
	removalDelayMax = time.Second
	// sweepWaitMax is how long it waits for the end of a sweep, which may find more.
	sweepWaitMax = 3 * time.Second
)

// service is one service of the catalog cache.
type service struct {
	name string
	// raw are the entries in force, or nil; nodes, failing and instances are derived
	// from them.
	raw       []byte
	nodes     []string
	failing   []checkStatus
	instances int
	protocol  string
	fragment  *mesh.Fragment // or nil
	notes     []mapping.Note

	// generation is that of the latest answer, and index its index; 0 means that the
	// service was not read yet.
	generation, index uint64
	answeredAt        time.Time // when the latest answer came
	// filtered says that the token may not read all of it. held are the keys of entries
	// that it could read before, and that stay for that reason.
	filtered bool
	// denied says that it may read nothing of it.
	denied bool
	held   map[string]bool
	// empty says that the answer was empty, while the service is listed.
	empty bool
	// fault is the error of the latest reading, or empty; failedFor is how long readings
	// have failed while those of others succeed.
	fault     string
	failedFor time.Duration

	watched bool
	cancel  func() // ends the watch, or nil

	// wanted is what to read of it; reading says that a reading is in flight.
	wanted  readMode
	reading bool
	// rereads counts the readings that a table watch caused and that still differ from
	// it, by state of the checks.
	rereads map[string]reread
}

// catalog is the cache of the catalog. The loop owns it.
type catalog struct {
	s        *Source
	services map[string]*service
	// listed is the latest list of services, or nil; generation is its generation.
	listed     listing
	generation uint64
	// listedIndex is the index of that list, and listedAt when it came.
	listedIndex uint64
	listedAt    time.Time
	// hidden says that the token may not read all of the list.
	hidden bool
	// filterFault is why Consul refuses the filter, or nil.
	filterFault error
	// stale are the services that were not read in this generation, unconfirmed those
	// that are not listed any more and not read since.
	stale, unconfirmed map[string]bool
	// unreadable are the services that cannot be read and that nothing waits for; true
	// means that they are read again later.
	unreadable map[string]bool
	// failing are those whose latest reading failed with an error that may pass.
	failing    map[string]bool
	answeredAt time.Time // when any service was
	// unlisted are the services that are not in the list.
	unlisted map[string]bool
	// deferred are readings that remove something.
	deferred           map[string]*reading
	deferredAt, lastAt time.Time

	protocols *protocols
	// fragment is what buildFragment made last; changed are the services with another
	// fragment since, with the one that is in fragment, or nil.
	fragment *mesh.Fragment
	changed  map[string]*mesh.Fragment
	// reduced are the services with removals that the receiver has not accepted.
	reduced map[string]bool
	// unsaved are the shards of the state directory that are out of date.
	unsaved   map[int]bool
	instances int
}

func newCatalog(s *Source) *catalog {
	return &catalog{
		s: s, services: map[string]*service{}, stale: map[string]bool{}, unconfirmed: map[string]bool{}, unlisted: map[string]bool{}, reduced: map[string]bool{}, unreadable: map[string]bool{}, failing: map[string]bool{}, deferred: map[string]*reading{},
		protocols: &protocols{}, fragment: &mesh.Fragment{Source: s.cfg.Name}, changed: map[string]*mesh.Fragment{}, unsaved: map[int]bool{},
	}
}

// isOlder reports whether an answer is older than the one that came at a time, with a
// generation and an index. There are several queries for the same, so answers may
// overtake each other. A lower index does not show it if the query was sent later:
// Consul may have been restored from a snapshot.
func isOlder(m client.Meta, generation, index uint64, came time.Time) bool {
	if m.Generation != generation {
		return m.Generation < generation
	}
	return m.Index < index && (!m.Fresh || m.Asked.Before(came))
}

// setListing takes a list of services that is not older than the one before. It returns
// the names that are new or have other tags than before, and those that are gone
// from it, both sorted.
func (p *catalog) setListing(names listing, m client.Meta, now time.Time) (news, gone []string) {
	prev := p.listed
	clear(p.unlisted)
	p.listed, p.hidden, p.generation, p.listedIndex, p.listedAt = names, m.Filtered, m.Generation, m.Index, now
	for name, tags := range names {
		svc := p.services[name]
		if svc == nil {
			svc = &service{name: name}
			p.services[name] = svc
		}
		was, known := prev[name]
		if !known || was != tags || svc.empty {
			news = append(news, name)
		}
		delete(p.unconfirmed, name)
	}
	for name, svc := range p.services {
		if _, ok := names[name]; !ok {
			gone = append(gone, name)
			p.unlisted[name] = true
			if !svc.denied { // then it is read again, but nothing waits for it
				p.unconfirmed[name] = true
			}
		}
		if svc.generation < p.generation {
			p.stale[name] = true
		} else {
			delete(p.stale, name)
		}
	}
	slices.Sort(news)
	slices.Sort(gone)
	return news, gone
}

// accept takes a reading: it is applied at once, or, if it removes something, with
// others. It returns false for one that is older than another, which is ignored.
func (p *catalog) accept(r *reading, now time.Time) bool {
	svc := p.services[r.name]
	if svc == nil {
		return true // it is gone meanwhile
	}
	if r.err != nil {
		p.readFailed(svc, r)
		return true
	}
	if isOlder(r.Meta, svc.generation, svc.index, svc.answeredAt) {
		return false
	}
	svc.fault, svc.failedFor, p.filterFault, p.answeredAt = "", 0, nil, now
	delete(p.unreadable, r.name)
	delete(p.failing, r.name)
	svc.generation, svc.index, svc.answeredAt = r.Generation, r.Index, now
	if svc.generation >= p.generation {
		delete(p.stale, r.name)
	}
	delete(p.unconfirmed, r.name)
	if !r.unchanged && p.keepHidden(svc, r) {
		p.stage(svc, r, now)
	}
	return true
}

// stage applies a reading, or defers it.
func (p *catalog) stage(svc *service, r *reading, now time.Time) {
	_, listed := p.listed[r.name]
	svc.empty = len(r.entries) == 0 && listed && p.s.cfg.Filter == "" && svc.raw != nil
	switch {
	case svc.empty:
		return // until the list agrees
	case p.removes(svc, r, listed):
		if len(p.deferred) == 0 {
			p.deferredAt = now
		}
		p.lastAt = now
		p.deferred[r.name] = r
	default:
		delete(p.deferred, r.name)
		p.apply(svc, r)
	}
}

// keepHidden adds to a filtered answer the entries that the token could read before:
// they are not gone because they are hidden. It returns false if the reading is
// ignored.
func (p *catalog) keepHidden(svc *service, r *reading) bool {
	newly := r.Filtered && !svc.filtered
	if r.Filtered != svc.filtered || len(svc.held) > 0 {
		p.unsaved[shardOf(svc.name)] = true // held may change
	}
	if !r.Filtered {
		svc.filtered, svc.denied, svc.held = false, false, nil
		return true
	}
	if len(r.entries) == 0 {
		svc.denied = true // all of it stays
		return svc.raw == nil
	}
	svc.denied = false
	svc.filtered = true
	if svc.raw == nil || !newly && len(svc.held) == 0 {
		return true
	}
	before, err := decodeEntries(svc.raw)
	if err != nil {
		return true // it is our own writing
	}
	seen := map[string]bool{}
	for _, e := range r.entries {
		seen[e.key()] = true
	}
	held := map[string]bool{}
	for _, e := range before {
		if place := e.key(); !seen[place] && (newly || svc.held[place]) {
			held[place] = true
			r.entries = append(r.entries, e)
		}
	}
	svc.held = held
	if len(held) > 0 {
		p.remap(r)
	}
	return true
}

// remap maps the entries of a reading again.
func (p *catalog) remap(r *reading) {
	r.entries, _ = sortEntries(r.entries) // they were in order before
	if raw, err := encodeEntries(r.entries); err == nil {
		r.raw = raw
	}
	r.protocol = p.protocols.protocol(r.name)
	p.s.mapEntries(r)
}

// removes reports whether a reading removes something from the mesh.
func (p *catalog) removes(svc *service, r *reading, listed bool) bool {
	if len(r.entries) == 0 && !listed {
		return svc.fragment != nil && !svc.fragment.Empty()
	}
	if svc.fragment == nil {
		return false
	}
	return missing(svc.fragment.Workloads, r.mapped.Fragment.Workloads, func(a, b *mesh.Workload) int { return a.Compare(b.Key) }) ||
		missing(svc.fragment.Services, r.mapped.Fragment.Services, func(a, b *mesh.Service) int {
			return cmp.Or(a.Compare(b.Key), cmp.Compare(a.Hostname, b.Hostname))
		})
}

// missing reports whether something of prev has no successor in next; both are
// sorted.
func missing[T any](prev, next []T, order func(a, b T) int) bool {
	for _, x := range prev {
		if _, found := slices.BinarySearchFunc(next, x, order); !found {
			return true
		}
	}
	return false
}

// applyRemovals applies the deferred readings once all that may be removed with them is
// known. It returns when to try again; zero means after the next event.
func (p *catalog) applyRemovals(now time.Time, ready, sweeping bool) time.Time {
	p.dropGone()
	if len(p.deferred) == 0 || !ready || len(p.stale) > 0 || len(p.unconfirmed) > 0 {
		return time.Time{}
	}
	if most := p.deferredAt.Add(sweepWaitMax); sweeping && most.After(now) {
		return most
	}
	at := p.lastAt.Add(removalDelay)
	if most := p.deferredAt.Add(removalDelayMax); most.Before(at) {
		at = most
	}
	if at.After(now) {
		return at
	}
	for name, r := range p.deferred {
		if svc := p.services[name]; svc != nil {
			p.reduced[name] = true
			p.apply(svc, r)
		}
	}
	clear(p.deferred)
	p.dropGone()
	return time.Time{}
}

// dropGone drops the services that are neither listed nor have anything.
func (p *catalog) dropGone() {
	for name := range p.unlisted {
		svc := p.services[name]
		if svc == nil {
			delete(p.unlisted, name)
			continue
		}
		if _, listed := p.listed[name]; listed || p.unconfirmed[name] || p.deferred[name] != nil || svc.raw != nil || svc.generation < p.generation {
			continue
		}
		if svc.cancel != nil {
			svc.cancel()
		}
		p.markChanged(svc)
		svc.fragment = nil
		delete(p.services, name)
		delete(p.stale, name)
		delete(p.unreadable, name)
		delete(p.reduced, name)
		delete(p.failing, name)
		delete(p.unlisted, name)
	}
}

// markChanged notes that a service gets another fragment.
func (p *catalog) markChanged(svc *service) {
	if _, noted := p.changed[svc.name]; !noted {
		p.changed[svc.name] = svc.fragment
	}
}

// apply applies a reading.
func (p *catalog) apply(svc *service, r *reading) {
	if want := p.protocols.protocol(r.name); r.protocol != want {
		p.remap(r)
	}
	if svc.fragment != nil && bytes.Equal(svc.raw, r.raw) && svc.protocol == r.protocol {
		return
	}
	p.instances += len(r.entries) - svc.instances
	svc.raw, svc.protocol, svc.notes = r.raw, r.protocol, r.mapped.Notes
	svc.nodes, svc.failing, svc.instances = nodeNames(r.entries), failing(r.entries), len(r.entries)
	if fragment := mapping.Reuse(svc.fragment, r.mapped.Fragment); fragment != svc.fragment {
		p.markChanged(svc)
		svc.fragment = fragment
	}
	p.unsaved[shardOf(svc.name)] = true
}

// setProtocols takes other defaults of Connect, and maps the services again that they
// are for.
func (p *catalog) setProtocols(next *protocols) {
	p.protocols = next
	p.s.protocols.Store(next)
	for name, svc := range p.services {
		if svc.raw == nil || svc.protocol == next.protocol(name) {
			continue
		}
		entries, err := decodeEntries(svc.raw)
		if err != nil {
			continue // it is our own writing
		}
		r := &reading{name: name, entries: entries}
		p.remap(r)
		p.apply(svc, r)
	}
}

// without is a fragment without the objects that are also in another; either may be
// nil.
func without(f, other *mesh.Fragment) *mesh.Fragment {
	switch {
	case f == nil:
		return &mesh.Fragment{}
	case other == nil:
		return f
	}
	services, workloads := setOf(other.Services), setOf(other.Workloads)
	return &mesh.Fragment{
		Services:  slices.DeleteFunc(slices.Clone(f.Services), func(x *mesh.Service) bool { return services[x] }),
		Workloads: slices.DeleteFunc(slices.Clone(f.Workloads), func(x *mesh.Workload) bool { return workloads[x] }),
	}
}

func setOf[T comparable](list []T) map[T]bool {
	out := make(map[T]bool, len(list))
	for _, x := range list {
		out[x] = true
	}
	return out
}

// buildFragment returns the fragment of all services: the one before, if nothing
// changed.
func (p *catalog) buildFragment() *mesh.Fragment {
	if len(p.changed) == 0 {
		return p.fragment
	}
	var out, in []*mesh.Fragment
	for _, name := range slices.Sorted(maps.Keys(p.changed)) {
		before := p.changed[name]
		var after *mesh.Fragment
		if svc := p.services[name]; svc != nil {
			after = svc.fragment
		}
		if before == after {
			continue
		}
		out = append(out, without(before, after))
		in = append(in, without(after, before))
	}
	clear(p.changed)
	p.fragment = p.fragment.Replace(out, in)
	return p.fragment
}
