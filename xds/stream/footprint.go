package stream

import "unsafe"

// Footprint is the memory, in bytes, that a [Server] keeps because of what its peer sent.
// It is an estimate. Generations, and what is made from them for all peers, are not
// included.
type Footprint struct {
	// Own is kept for this stream alone.
	Own int
	// Sets are sets of names that it shares with streams which subscribe to the same
	// names.
	Sets []SharedSet
}

// SharedSet is a set of names. Equal sets of an [Interner] are the same set and compare
// equal.
type SharedSet struct{ set *nameSet }

// Size is how many bytes the set takes, once; an estimate.
func (s SharedSet) Size() int { return s.set.size() }

// Sizes of structures without the strings in them, in bytes; estimates.
const (
	bytesOfType          = 1 << 10
	bytesOfState         = 512
	bytesOfResourceState = 320 // with its place in the map
	bytesOfVersionOnly   = 160 // a resource without a body, in a set and its index
)

// Footprint estimates the memory. Its cost grows with what it counts: do not call it after
// every request.
func (s *Server) Footprint() Footprint {
	f := Footprint{}
	for url, names := range s.cfg.Unacknowledged {
		f.Own += len(url) + bytesOfHeader*len(names)
	}
	reasons := map[*byte]struct{}{}
	for _, t := range s.order {
		f.Own += bytesOfType + len(t.url) + len(t.status.lastError)
		for _, v := range t.initialVersions {
			f.Own += 2*bytesOfHeader + len(v.Name) + len(v.Version)
		}
		for k := range t.states() {
			f.share(k.sub.set)
			if k.haveScope.set != k.sub.set {
				f.share(k.haveScope.set)
			}
			f.Own += k.footprint(reasons)
		}
	}
	return f
}

func (f *Footprint) share(set *nameSet) {
	if set != nil {
		f.Sets = append(f.Sets, SharedSet{set})
	}
}

// footprint estimates a subscriptionState without its names. The reasons are those that
// were counted already: many rejections may share one text.
func (t *subscriptionState) footprint(reasons map[*byte]struct{}) int {
	n := bytesOfState + bytesOfHeader*len(t.unconfirmedRemovals) + t.have.footprint()
	if t.want != t.have {
		n += t.want.footprint()
	}
	p := t.pending
	if p == nil {
		return n
	}
	for name, e := range p.states {
		n += bytesOfResourceState + len(name) + len(e.rejectedVersion)
		if e.acked != nil && e.acked.Body == nil {
			n += bytesOfVersionOnly + len(e.acked.Version)
		}
		text := unsafe.StringData(e.rejectedReason) //nolint:gosec // compared only: nothing is read through it
		if _, counted := reasons[text]; !counted && e.rejectedReason != "" {
			reasons[text] = struct{}{}
			n += len(e.rejectedReason)
		}
	}
	for _, group := range p.retries {
		n += bytesOfHeader * len(group)
	}
	for _, list := range [][]*sentResponse{p.sent, p.nackedClusters} {
		for _, r := range list {
			n += bytesOfState + 8*len(r.resources) + bytesOfHeader*len(r.removed)
		}
	}
	return n + 8*(len(p.add)+len(p.forced)) + bytesOfHeader*len(p.remove)
}

// footprint estimates a merged set that belongs to one stream.
func (m *mergedSet) footprint() int {
	if m == nil || !m.private {
		return 0
	}
	n := 0
	own := m.sets[len(m.sets)-1] // see withPrivate
	for r := range own.All() {
		n += 8
		if r.Body == nil {
			n += bytesOfVersionOnly + len(r.Name) + len(r.Version)
		}
	}
	return n
}
