package registry

import (
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// keys is what the loop knows of the keys of issuers.
type keys struct {
	// lists are the objects that name issuers, those of each source that are published and
	// those that will be; wanted is what they name.
	lists  [][]*mesh.RequestAuthentication
	wanted []mesh.KeyRequest
	// current are the keys that the next snapshot has.
	current *mesh.KeySets
	// until is how long configuration waits for keys; zero if it does not.
	until time.Time
}

// readKeys takes the keys that are in force. Other ones are pushed at once: who has a key that
// an issuer took back must be refused.
func (l *loop) readKeys(now time.Time) {
	next, _ := l.r.cfg.KeySets.Current()
	if next != l.keys.current {
		l.keys.current = next
		l.pushes.note(change{health: true}, now)
	}
}

// awaitKeys says which keys are wanted, and reports whether configuration waits for some of
// them: a change that names another issuer would have its tokens refused until they are there.
func (l *loop) awaitKeys(now time.Time) bool {
	if l.r.cfg.KeySets == nil {
		return false
	}
	if more := l.wantKeys(); more && l.r.Snapshot() == nil {
		l.keys.until = sooner(now, l.waitUntil()).Add(keysWait)
	} else if more && l.keys.until.IsZero() {
		l.keys.until = now.Add(keysWait)
	}
	if l.keys.until.IsZero() {
		return false
	}
	_, settled := l.r.cfg.KeySets.Current()
	l.readKeys(now)
	if settled || !now.Before(l.keys.until) {
		l.keys.until = time.Time{}
	}
	return !l.keys.until.IsZero()
}

// wantKeys says which keys are wanted, and reports whether there are others than before.
func (l *loop) wantKeys() bool {
	in := mesh.Input{Bindings: l.bindings, BoundPrivateKeys: l.r.cfg.BoundPrivateKeys}
	lists := make([][]*mesh.RequestAuthentication, 0, 2*len(l.sources))
	for _, s := range l.sources {
		for _, f := range []*mesh.Fragment{s.current, s.public} {
			if f == nil {
				f = &mesh.Fragment{}
			}
			lists = append(lists, f.RequestAuthentications)
		}
	}
	if slices.EqualFunc(lists, l.keys.lists, slices.Equal[[]*mesh.RequestAuthentication]) {
		return false
	}
	l.keys.lists = lists
	var wanted []mesh.KeyRequest
	for i, s := range l.sources {
		for _, f := range []*mesh.Fragment{s.current, s.public} {
			if f != nil {
				wanted = append(wanted, f.KeyRequests(in.PrivateKeys(i))...)
			}
		}
	}
	slices.SortFunc(wanted, mesh.KeyRequest.Compare)
	wanted = slices.Compact(wanted)
	if slices.Equal(wanted, l.keys.wanted) {
		return false
	}
	more := slices.ContainsFunc(wanted, func(r mesh.KeyRequest) bool {
		_, had := slices.BinarySearchFunc(l.keys.wanted, r, mesh.KeyRequest.Compare)
		return !had
	})
	l.keys.wanted = wanted
	l.r.cfg.KeySets.Want(wanted)
	return more
}
