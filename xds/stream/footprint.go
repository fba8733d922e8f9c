package stream

import "unsafe"

// Footprint is what a [Server] keeps because its peer said so, in bytes, about.
// What it shall have, and what others made for that, is not in it.
type Footprint struct {
	// Own is of this stream alone.
	Own int
	// Sets are names that it shares with streams that ask for the same.
	Sets []SharedSet
}

// SharedSet is a set of names. Equal sets of an [Interner] are one, and compare so.
type SharedSet struct{ set *nameSet }

// Size is how many bytes it takes, once, about.
func (s SharedSet) Size() int { return s.set.size() }

// What things take beside the text in them, in bytes, about.
const (
	bytesOfType  = 1 << 10
	bytesOfTrack = 512
	bytesOfEntry = 320 // in its map
	bytesOfOwn   = 160 // a resource of which only the version is known, in a set and its index
)

// Footprint counts. It costs as much as there is to be counted: do not ask after
// every request.
func (s *Server) Footprint() Footprint {
	f := Footprint{}
	for url, names := range s.cfg.Distrust {
		f.Own += len(url) + bytesOfHeader*len(names)
	}
	reasons := map[*byte]struct{}{}
	for _, t := range s.order {
		f.Own += bytesOfType + len(t.url) + len(t.status.lastError)
		for _, v := range t.listed {
			f.Own += 2*bytesOfHeader + len(v.Name) + len(v.Version)
		}
		for k := range t.tracks() {
			f.share(k.sub.set)
			if k.scope.set != k.sub.set {
				f.share(k.scope.set)
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

// footprint is that of a track without its names. The reasons are those that were
// counted: many refusals may have one.
func (t *track) footprint(reasons map[*byte]struct{}) int {
	n := bytesOfTrack + bytesOfHeader*len(t.gone) + t.have.footprint()
	if t.seen != t.have {
		n += t.seen.footprint()
	}
	w := t.w
	if w == nil {
		return n
	}
	for name, e := range w.diff {
		n += bytesOfEntry + len(name) + len(e.refused)
		if e.acked != nil && e.acked.Body == nil {
			n += bytesOfOwn + len(e.acked.Version)
		}
		text := unsafe.StringData(e.reason) //nolint:gosec // only whether two are the same text; nothing is read by it
		if _, counted := reasons[text]; !counted && e.reason != "" {
			reasons[text] = struct{}{}
			n += len(e.reason)
		}
	}
	for _, group := range w.suspects {
		n += bytesOfHeader * len(group)
	}
	for _, list := range [][]*response{w.sent, w.refused} {
		for _, r := range list {
			n += bytesOfTrack + 8*len(r.list) + bytesOfHeader*len(r.gone)
		}
	}
	return n + 8*(len(w.add)+len(w.due)) + bytesOfHeader*len(w.remove)
}

// footprint is what a union takes that belongs to one stream.
func (u *union) footprint() int {
	if u == nil || !u.own {
		return 0
	}
	n := 0
	own := u.sets[len(u.sets)-1] // see keeping
	for r := range own.All() {
		n += 8
		if r.Body == nil {
			n += bytesOfOwn + len(r.Name) + len(r.Version)
		}
	}
	return n
}
