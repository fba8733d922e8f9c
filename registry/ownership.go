package registry

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Ownership is what is on record of a host: the namespace that named it first.
type Ownership struct {
	mesh.Owner
	// Left is when nothing of the namespace named the host any more; zero while
	// something does.
	Left time.Time
}

// OwnerStore keeps the record of whose hosts are, for sources that are bound to
// namespaces.
type OwnerStore interface {
	// Load returns what was saved last; nil where nothing ever was.
	Load() (map[mesh.Hostname]Ownership, error)
	Save(map[mesh.Hostname]Ownership) error
}

const (
	// DefaultHostRest is for how long a host that its owner names no more is kept
	// from others, where nothing else is said.
	DefaultHostRest = 7 * 24 * time.Hour
	// maxResting bounds the hosts that are kept for a namespace which names them no
	// more: whoever makes up names pushes out its own.
	maxResting = 10_000
	// saveAgain is how long after a failure the record is saved again.
	saveAgain = 10 * time.Second
)

// ownerRecord is the record of whose hosts are, as the loop has it.
type ownerRecord struct {
	bindings []*mesh.Binding // by source; nil where none is bound
	rest     time.Duration
	saver    *ownerSaver // or nil

	owners *mesh.Owners
	// left are the hosts that their owner names no more, and since when.
	left map[mesh.Hostname]time.Time
	// decided are the hosts that snapshots decided on since all sources were there.
	decided map[mesh.Hostname]bool
	// known says that there was a record at the start, or all sources have been
	// read since.
	known bool
}

func (c *Config) bindings() []*mesh.Binding {
	if len(c.Bindings) == 0 {
		return nil
	}
	out := make([]*mesh.Binding, len(c.Sources))
	for i, s := range c.Sources {
		out[i] = c.Bindings[s.Name()]
	}
	return out
}

// load takes over what is on disk. One that cannot be read is as if there were
// none: the hosts that several name go to the first by name.
func (l *ownerRecord) load(store OwnerStore) error {
	if len(l.bindings) == 0 || store == nil {
		return nil
	}
	saved, err := store.Load()
	owners := make(map[mesh.Hostname]mesh.Owner, len(saved))
	for h, x := range saved {
		owners[h] = x.Owner
		if !x.Left.IsZero() {
			l.left[h] = x.Left
		}
	}
	l.owners = l.owners.With(owners)
	l.known = len(saved) > 0
	return err
}

// unsettled says that a source is missing which may declare what is not on
// record. Without any record, at the first start, all hosts would be nobody's.
func (l *ownerRecord) unsettled(missing []string) bool { return l.known && len(missing) > 0 }

// take puts on record what a snapshot says of the hosts that were decided anew.
func (l *ownerRecord) take(s *mesh.Snapshot, now time.Time) {
	if len(l.bindings) == 0 {
		return
	}
	for _, h := range s.Decided() {
		l.decided[h] = true
	}
	if s.Incomplete {
		return
	}
	first := !l.known
	l.known = true
	news := map[mesh.Hostname]mesh.Owner{}
	moved := false
	grant := mesh.Grants(s)
	for h := range l.decided {
		was, recorded := l.owners.Of(h)
		is, granted := grant(h)
		_, resting := l.left[h]
		switch {
		case granted && is != was:
			news[h] = is
			delete(l.left, h)
		case !recorded:
		case s.Claimed(h, was.Namespace):
			moved = moved || resting
			delete(l.left, h)
		case !resting:
			l.left[h], moved = now, true
		}
	}
	clear(l.decided)
	l.bound(news)
	l.owners = l.owners.With(news)
	if first || moved || len(news) > 0 {
		l.save()
	}
}

// bound drops of the hosts that a namespace names no more the oldest, where there
// are too many.
func (l *ownerRecord) bound(news map[mesh.Hostname]mesh.Owner) {
	if len(l.left) <= maxResting {
		return
	}
	of := map[string][]mesh.Hostname{}
	for h := range l.left {
		owner, _ := l.owners.Of(h)
		of[owner.Namespace] = append(of[owner.Namespace], h)
	}
	for _, hosts := range of {
		if len(hosts) <= maxResting {
			continue
		}
		slices.SortFunc(hosts, func(a, b mesh.Hostname) int { return cmp.Or(l.left[a].Compare(l.left[b]), cmp.Compare(a, b)) })
		for _, h := range hosts[:len(hosts)-maxResting] {
			news[h] = mesh.Owner{}
			delete(l.left, h)
		}
	}
}

// expire gives up hosts that have rested for long enough. It reports whether there
// were any.
func (l *ownerRecord) expire(now time.Time) bool {
	news := map[mesh.Hostname]mesh.Owner{}
	for h, left := range l.left {
		if now.Sub(left) >= l.rest {
			news[h] = mesh.Owner{}
			delete(l.left, h)
		}
	}
	if len(news) == 0 {
		return false
	}
	l.owners = l.owners.With(news)
	l.save()
	return true
}

// next is when the next host is given up; zero if none rests.
func (l *ownerRecord) next() time.Time {
	var at time.Time
	for _, left := range l.left {
		if end := left.Add(l.rest); at.IsZero() || end.Before(at) {
			at = end
		}
	}
	return at
}

func (l *ownerRecord) save() {
	if l.saver != nil {
		l.saver.save(&ownerMoment{l.owners, maps.Clone(l.left)})
	}
}
