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
	// gatherFor is how long a removal waits for others, so that much that is gone
	// at once is one change, which the registry can judge; gatherMost bounds it.
	gatherFor  = 50 * time.Millisecond
	gatherMost = time.Second
	// sweepingMost is how long it waits for the end of a sweep, which may find more
	// that is gone.
	sweepingMost = 3 * time.Second
)

// service is one service of the picture.
type service struct {
	name string
	// raw are the entries that are in force, or nil; nodes, failing and instances
	// are found in them.
	raw       []byte
	nodes     []string
	failing   []status
	instances int
	protocol  string
	piece     *mesh.Fragment // or nil
	notes     []mapping.Note

	// turn is that of the latest answer, and index its index; 0 means that the
	// service was not read yet.
	turn, index uint64
	taken       time.Time // when the latest answer came
	// filtered says that the token may not see all of it. held are the places of
	// entries that it could see before and that stand for that reason.
	filtered bool
	// denied says that it may see nothing of it.
	denied bool
	held   map[string]bool
	// empty says that the answer had nothing, while the service is listed.
	empty bool
	// fault says why the latest answer cannot be used, or is empty, and failedFor for
	// how long that is so while others are answered.
	fault     string
	failedFor time.Duration

	watched bool
	cancel  func() // ends the watch, or nil

	// wanted is what to read of it, reading says that it is being read.
	wanted  want
	reading bool
	// rang counts the readings that a doorbell asked for and that did not agree
	// with it, by state.
	rang map[string]rung
}

// picture is what a datacenter is known to have. The loop owns it.
type picture struct {
	s        *Source
	services map[string]*service
	// listed is the latest list of services, or nil; turn is its turn.
	listed listing
	turn   uint64
	// listedIndex is the index of that list, and listedAt when it came.
	listedIndex uint64
	listedAt    time.Time
	// hidden says that the token may not see all of the list.
	hidden bool
	// filterFault says why Consul takes no question with the filter, or is nil.
	filterFault error
	// behind are the services that have not been read in this turn, doubted those
	// that are to be read because they are not listed any more.
	behind, doubted map[string]bool
	// unread are the services that cannot be read and that nothing waits for any
	// more; true is said of those that are asked for again.
	unread map[string]bool
	// faulty are those whose latest answer is an error that may pass.
	faulty     map[string]bool
	answeredAt time.Time // when any service was
	// unlisted are the services that are not in the list.
	unlisted map[string]bool
	// deferred are readings that take something away.
	deferred           map[string]*reading
	deferredAt, lastAt time.Time

	protocols *protocols
	// fragment is what compose made last; changed are the services of which the
	// piece is another one since, with the one that is in fragment, or nil.
	fragment *mesh.Fragment
	changed  map[string]*mesh.Fragment
	// cut are the services that lost something that the receiver has not agreed to.
	cut map[string]bool
	// unsaved are the shards of the state directory that are out of date.
	unsaved   map[int]bool
	instances int
}

func newPicture(s *Source) *picture {
	return &picture{
		s: s, services: map[string]*service{}, behind: map[string]bool{}, doubted: map[string]bool{}, unlisted: map[string]bool{}, cut: map[string]bool{}, unread: map[string]bool{}, faulty: map[string]bool{}, deferred: map[string]*reading{},
		protocols: &protocols{}, fragment: &mesh.Fragment{Source: s.cfg.Name}, changed: map[string]*mesh.Fragment{}, unsaved: map[int]bool{},
	}
}

// older reports whether an answer is older than the one that came at a time, with
// that turn and index. Several ask for the same thing, so answers may overtake
// each other. An index that is lower is no sign of it in an answer that was asked
// for later: Consul may have been restored from a snapshot.
func older(m client.Meta, turn, index uint64, came time.Time) bool {
	if m.Generation != turn {
		return m.Generation < turn
	}
	return m.Index < index && (!m.Fresh || m.Asked.Before(came))
}

// list takes a list of services that is not older than the one before. It returns
// the names that are new or have other tags than before, and those that are gone
// from it, both sorted.
func (p *picture) list(names listing, m client.Meta, now time.Time) (news, gone []string) {
	prev := p.listed
	clear(p.unlisted)
	p.listed, p.hidden, p.turn, p.listedIndex, p.listedAt = names, m.Filtered, m.Generation, m.Index, now
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
		delete(p.doubted, name)
	}
	for name, svc := range p.services {
		if _, ok := names[name]; !ok {
			gone = append(gone, name)
			p.unlisted[name] = true
			if !svc.denied { // then it is read again, but nothing waits for it
				p.doubted[name] = true
			}
		}
		if svc.turn < p.turn {
			p.behind[name] = true
		} else {
			delete(p.behind, name)
		}
	}
	slices.Sort(news)
	slices.Sort(gone)
	return news, gone
}

// accept takes a reading: it comes into force at once, or, where it takes
// something away, with others. It reports false of one that is older than another,
// and then counts for nothing.
func (p *picture) accept(r *reading, now time.Time) bool {
	svc := p.services[r.name]
	if svc == nil {
		return true // it is gone meanwhile
	}
	if r.err != nil {
		p.refuse(svc, r)
		return true
	}
	if older(r.Meta, svc.turn, svc.index, svc.taken) {
		return false
	}
	svc.fault, svc.failedFor, p.filterFault, p.answeredAt = "", 0, nil, now
	delete(p.unread, r.name)
	delete(p.faulty, r.name)
	svc.turn, svc.index, svc.taken = r.Generation, r.Index, now
	if svc.turn >= p.turn {
		delete(p.behind, r.name)
	}
	delete(p.doubted, r.name)
	if !r.same && p.believe(svc, r) {
		p.enforce(svc, r, now)
	}
	return true
}

// enforce brings a reading into force, or has it wait for others.
func (p *picture) enforce(svc *service, r *reading, now time.Time) {
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

// believe judges an answer of which the token may not see everything: what it
// could see before, and now cannot, is not gone for that reason. It reports
// whether the reading counts, and may add to it.
func (p *picture) believe(svc *service, r *reading) bool {
	newly := r.Filtered && !svc.filtered
	if r.Filtered != svc.filtered || len(svc.held) > 0 {
		p.unsaved[shardOf(svc.name)] = true // what stands for that reason may be other entries
	}
	if !r.Filtered {
		svc.filtered, svc.denied, svc.held = false, false, nil
		return true
	}
	if len(r.entries) == 0 {
		svc.denied = true // all of it stands
		return svc.raw == nil
	}
	svc.denied = false
	svc.filtered = true
	if svc.raw == nil || !newly && len(svc.held) == 0 {
		return true
	}
	before, err := parse(svc.raw)
	if err != nil {
		return true // it is our own writing
	}
	seen := map[string]bool{}
	for _, e := range r.entries {
		seen[e.place()] = true
	}
	held := map[string]bool{}
	for _, e := range before {
		if place := e.place(); !seen[place] && (newly || svc.held[place]) {
			held[place] = true
			r.entries = append(r.entries, e)
		}
	}
	svc.held = held
	if len(held) > 0 {
		p.remake(r)
	}
	return true
}

// remake makes a reading anew of its entries.
func (p *picture) remake(r *reading) {
	r.entries, _ = tidy(r.entries) // they were in order before
	if raw, err := pack(r.entries); err == nil {
		r.raw = raw
	}
	r.protocol = p.protocols.protocol(r.name)
	p.s.chart(r)
}

// removes reports whether a reading takes something away from the mesh.
func (p *picture) removes(svc *service, r *reading, listed bool) bool {
	if len(r.entries) == 0 && !listed {
		return svc.piece != nil && !svc.piece.Empty()
	}
	if svc.piece == nil {
		return false
	}
	return lacks(svc.piece.Workloads, r.result.Piece.Workloads, func(a, b *mesh.Workload) int { return a.Compare(b.Key) }) ||
		lacks(svc.piece.Services, r.result.Piece.Services, func(a, b *mesh.Service) int {
			return cmp.Or(a.Compare(b.Key), cmp.Compare(a.Hostname, b.Hostname))
		})
}

// lacks reports whether something of prev has no successor in next; both are
// sorted.
func lacks[T any](prev, next []T, order func(a, b T) int) bool {
	for _, x := range prev {
		if _, found := slices.BinarySearchFunc(next, x, order); !found {
			return true
		}
	}
	return false
}

// settle brings into force what takes something away, once all that may go with
// it is known. It returns when to look again; zero means not before something
// happens.
func (p *picture) settle(now time.Time, ready, sweeping bool) time.Time {
	p.forget()
	if len(p.deferred) == 0 || !ready || len(p.behind) > 0 || len(p.doubted) > 0 {
		return time.Time{}
	}
	if most := p.deferredAt.Add(sweepingMost); sweeping && most.After(now) {
		return most
	}
	at := p.lastAt.Add(gatherFor)
	if most := p.deferredAt.Add(gatherMost); most.Before(at) {
		at = most
	}
	if at.After(now) {
		return at
	}
	for name, r := range p.deferred {
		if svc := p.services[name]; svc != nil {
			p.cut[name] = true
			p.apply(svc, r)
		}
	}
	clear(p.deferred)
	p.forget()
	return time.Time{}
}

// forget drops the services that are neither listed nor have anything.
func (p *picture) forget() {
	for name := range p.unlisted {
		svc := p.services[name]
		if svc == nil {
			delete(p.unlisted, name)
			continue
		}
		if _, listed := p.listed[name]; listed || p.doubted[name] || p.deferred[name] != nil || svc.raw != nil || svc.turn < p.turn {
			continue
		}
		if svc.cancel != nil {
			svc.cancel()
		}
		p.touch(svc)
		svc.piece = nil
		delete(p.services, name)
		delete(p.behind, name)
		delete(p.unread, name)
		delete(p.cut, name)
		delete(p.faulty, name)
		delete(p.unlisted, name)
	}
}

// touch notes that a service's piece is about to become another one.
func (p *picture) touch(svc *service) {
	if _, noted := p.changed[svc.name]; !noted {
		p.changed[svc.name] = svc.piece
	}
}

// apply brings a reading into force.
func (p *picture) apply(svc *service, r *reading) {
	if want := p.protocols.protocol(r.name); r.protocol != want {
		p.remake(r)
	}
	if svc.piece != nil && bytes.Equal(svc.raw, r.raw) && svc.protocol == r.protocol {
		return
	}
	p.instances += len(r.entries) - svc.instances
	svc.raw, svc.protocol, svc.notes = r.raw, r.protocol, r.result.Notes
	svc.nodes, svc.failing, svc.instances = nodes(r.entries), failing(r.entries), len(r.entries)
	if piece := mapping.Reuse(svc.piece, r.result.Piece); piece != svc.piece {
		p.touch(svc)
		svc.piece = piece
	}
	p.unsaved[shardOf(svc.name)] = true
}

// redefine takes other defaults of Connect: the services that they are for are
// made anew.
func (p *picture) redefine(next *protocols) {
	p.protocols = next
	p.s.protocols.Store(next)
	for name, svc := range p.services {
		if svc.raw == nil || svc.protocol == next.protocol(name) {
			continue
		}
		entries, err := parse(svc.raw)
		if err != nil {
			continue // it is our own writing
		}
		r := &reading{name: name, entries: entries}
		p.remake(r)
		p.apply(svc, r)
	}
}

// without is a piece but for the objects that are also in another; either may be
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

// compose returns the fragment of the present picture: the one before, where
// nothing changed.
func (p *picture) compose() *mesh.Fragment {
	if len(p.changed) == 0 {
		return p.fragment
	}
	var out, in []*mesh.Fragment
	for _, name := range slices.Sorted(maps.Keys(p.changed)) {
		before := p.changed[name]
		var after *mesh.Fragment
		if svc := p.services[name]; svc != nil {
			after = svc.piece
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
