package registry

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Ownership is the record of a host: the namespace that declared it first.
type Ownership struct {
	mesh.Owner
	// Left is when the namespace stopped declaring the host; zero while it does.
	Left time.Time
}

// OwnerStore saves the record of owners, for sources that are bound to namespaces.
type OwnerStore interface {
	// Load returns what was saved last; nil where nothing ever was.
	Load() (map[mesh.Hostname]Ownership, error)
	Save(map[mesh.Hostname]Ownership) error
}

const (
	// DefaultHostRest is how long a host stays reserved after its owner stopped declaring it,
	// by default.
	DefaultHostRest = 7 * 24 * time.Hour
	// maxResting limits the reserved hosts of a namespace: a namespace that makes up names
	// displaces its own.
	maxResting = 10_000
	// saveAgain is the time between two tries after an error.
	saveAgain = 10 * time.Second
)

// ownerRecord is the record of owners in the loop.
type ownerRecord struct {
	bindings []*mesh.Binding // by source; nil where none is bound
	rest     time.Duration
	saver    *ownerSaver // or nil

	owners *mesh.Owners
	// left are the hosts that their owner no longer declares, and since when.
	left map[mesh.Hostname]time.Time
	// decided are the hosts that snapshots decided on since all sources were there.
	decided map[mesh.Hostname]bool
	// known means that there was a record at the start, or all sources have been read since.
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

// load reads the saved record. An unreadable one counts as missing: contested hosts go to the
// first namespace by name.
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

// unsettled means that a source is missing which may declare hosts that are not on record.
// Without any record, at the first start, all hosts would belong to nobody.
func (l *ownerRecord) unsettled(missing []string) bool { return l.known && len(missing) > 0 }

// take records the owners of a snapshot that were decided again.
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

// bound removes the oldest reserved hosts of a namespace, if there are too many.
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

// expire removes hosts whose reservation has ended. It reports whether there were any.
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

// next is when the next reservation ends; zero if there is none.
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
