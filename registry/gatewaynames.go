package registry

import (
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// GatewayNames looks up names of gateways in MeshNetworks. Its methods are called by one goroutine
// and must not block.
type GatewayNames interface {
	// Want replaces what is wanted.
	Want(names []string)
	// Addresses are those in force; the same ones are the same pointer.
	Addresses() *mesh.GatewayAddresses
	// Settled says that each of the names is known, or was asked for at least once.
	Settled(names []string) bool
	// Changed receives after one of these may have changed.
	Changed() <-chan struct{}
}

// namesWait is how long configuration waits for the addresses of gateways that it names for the
// first time: without them, hosts would connect to addresses of another site. A name that nobody
// answers must not delay what else was changed by much.
const namesWait = 3 * time.Second

// gatewayNames is what the loop knows of names of gateways.
type gatewayNames struct {
	wanted []string
	// current are the addresses that the next snapshot has.
	current *mesh.GatewayAddresses
	// until is how long configuration waits for addresses; zero if it does not.
	until time.Time
}

// readNames takes the addresses that are in force, and has other ones pushed.
func (l *loop) readNames(now time.Time) {
	if next := l.r.cfg.GatewayNames.Addresses(); next != l.names.current {
		l.names.current = next
		l.pushes.note(change{health: true}, now)
	}
}

// awaitNames says which names are wanted, and reports whether configuration waits for some of them.
func (l *loop) awaitNames(now time.Time) bool {
	if l.r.cfg.GatewayNames == nil {
		return false
	}
	if more := l.wantNames(); more && l.names.until.IsZero() {
		l.names.until = now.Add(namesWait)
	}
	if l.names.until.IsZero() {
		return false
	}
	settled := l.r.cfg.GatewayNames.Settled(l.names.wanted) // before the addresses, which then are at least as new
	l.readNames(now)
	if settled || !now.Before(l.names.until) {
		l.names.until = time.Time{}
	}
	return !l.names.until.IsZero()
}

// wantNames says which names are wanted, and reports whether there are others than before.
func (l *loop) wantNames() bool {
	var wanted []string
	for _, s := range l.sources {
		for _, f := range []*mesh.Fragment{s.current, s.public} {
			if f != nil {
				wanted = append(wanted, f.MeshNetworks.GatewayNames()...)
			}
		}
	}
	slices.Sort(wanted)
	wanted = slices.Compact(wanted)
	if slices.Equal(wanted, l.names.wanted) {
		return false
	}
	more := slices.ContainsFunc(wanted, func(name string) bool { return !slices.Contains(l.names.wanted, name) })
	l.names.wanted = wanted
	l.r.cfg.GatewayNames.Want(wanted)
	return more
}
