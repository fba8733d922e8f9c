package addresses

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	// Rest is how long an address is kept for a host that is gone. Clients may have its name
	// resolved for that long, and the host may return. Only time while the server runs counts:
	// a clock that is set forward ends no rest.
	Rest = 24 * time.Hour
	// saveAfter is how much of a rest a server that is killed may forget: it is longer then.
	saveAfter = time.Hour
	// boundShare is the part of a range, 1 of so many, that a namespace may have by sources
	// that are bound to namespaces. So no tenant takes the addresses of all others.
	boundShare = 4
	// ipv6Tries is how many addresses of IPv6 a host may find taken. Not even one is taken
	// unless somebody wrote it into a manifest.
	ipv6Tries = 4
)

// Saved is what a table keeps on disk.
type Saved struct {
	// Running is for how long servers have run with the table.
	Running time.Duration
	// Hosts are the IPv4 addresses by host.
	Hosts map[mesh.NamespacedHost]SavedAddress
}

// SavedAddress is the IPv4 address of a host.
type SavedAddress struct {
	IPv4 netip.Addr
	// Left is when the host went, on the clock of Running; nil while it is there.
	Left *time.Duration
}

// claim is what sources say of a host.
type claim struct {
	// unbound and bound count the services that need addresses, by whether their source is
	// bound to namespaces.
	unbound, bound int
	// pins count the services that have an address of the ranges as their own.
	pins map[netip.Addr]*pinCount
}

type pinCount struct{ unbound, bound int }

func (p *pinCount) boundOnly() bool { return p.bound > 0 && p.unbound == 0 }

func (c *claim) needs() bool { return c != nil && c.unbound+c.bound > 0 }

// pair is an address of each family; either may be the zero address.
type pair struct{ ipv4, ipv6 netip.Addr }

// Table is who has which address. The zero value is not ready; see [New].
type Table struct {
	ipv4    netip.Prefix
	running time.Duration
	claims  map[mesh.NamespacedHost]*claim
	// has are the addresses of hosts, of those that rest too; holders is by address.
	has     map[mesh.NamespacedHost]pair
	holders map[netip.Addr]mesh.NamespacedHost
	// left is when hosts went that still have an address.
	left map[mesh.NamespacedHost]time.Duration
	// end is when the first of them may be due, on the clock of running.
	end time.Duration
	// pinned are the hosts that have an address as their own.
	pinned map[netip.Addr]map[mesh.NamespacedHost]bool
	// pins are the number of IPv4 addresses that hosts of a namespace have as their own, by bound
	// sources only.
	pins map[string]int
	// taken has a bit for each slot: held, resting or pinned.
	taken []uint64
	free  uint32
	// count is the number of IPv4 addresses of a namespace, without those that rest, and
	// resting the number of these.
	count, resting map[string]int
	// without are hosts for which there was no IPv4.
	without map[mesh.NamespacedHost]bool
	// dirty are the hosts to decide on.
	dirty map[mesh.NamespacedHost]bool
	// unsaved says that what is to be saved has changed, or how long rests have lasted; saved
	// is how long servers had run when that was asked.
	unsaved bool
	saved   time.Duration
}

// New makes a table for a range of IPv4 addresses, with what was saved. Addresses of other
// ranges, and addresses that two hosts have, are left out, with an error that says how many:
// their hosts get others.
func New(ipv4 netip.Prefix, saved Saved) (*Table, error) {
	t := &Table{
		ipv4: ipv4, running: max(0, saved.Running), free: capacity(ipv4), taken: make([]uint64, (capacity(ipv4)+63)/64),
		claims: map[mesh.NamespacedHost]*claim{}, has: map[mesh.NamespacedHost]pair{}, holders: map[netip.Addr]mesh.NamespacedHost{},
		left: map[mesh.NamespacedHost]time.Duration{}, pinned: map[netip.Addr]map[mesh.NamespacedHost]bool{},
		pins: map[string]int{}, count: map[string]int{}, resting: map[string]int{}, without: map[mesh.NamespacedHost]bool{}, dirty: map[mesh.NamespacedHost]bool{},
	}
	outside, twice := 0, 0
	for _, h := range slices.SortedFunc(maps.Keys(saved.Hosts), mesh.NamespacedHost.Compare) {
		x := saved.Hosts[h]
		if _, ok := slotOf(ipv4, x.IPv4); !ok {
			outside++
			continue
		}
		if _, held := t.holders[x.IPv4]; held {
			twice++
			continue
		}
		t.giveIPv4(h, x.IPv4)
		if x.Left != nil {
			t.leave(h, min(max(0, *x.Left), t.running))
		}
		t.dirty[h] = true
	}
	t.unsaved, t.saved = false, t.running
	var errs []error
	if outside > 0 {
		errs = append(errs, fmt.Errorf("%d hosts have addresses outside of %s, and get others", outside, ipv4))
	}
	if twice > 0 {
		errs = append(errs, fmt.Errorf("%d hosts have the address of another one, and get others", twice))
	}
	return t, errors.Join(errs...)
}

// Change notes that services of a source have changed. bound says that the source may write
// for some namespaces only.
func (t *Table) Change(deltas []mesh.Delta[*mesh.Service], bound bool) {
	for _, d := range deltas {
		if d.Old != nil {
			t.claim(d.Old, bound, -1)
		}
		if d.New != nil {
			t.claim(d.New, bound, 1)
		}
	}
}

func (t *Table) claim(svc *mesh.Service, bound bool, n int) {
	h := svc.NamespacedHost()
	pins := t.pinsOf(svc)
	if !svc.Allocatable() && len(pins) == 0 {
		return
	}
	t.dirty[h] = true
	c := t.claims[h]
	if c == nil {
		c = &claim{pins: map[netip.Addr]*pinCount{}}
		t.claims[h] = c
	}
	switch {
	case !svc.Allocatable():
	case bound:
		c.bound += n
	default:
		c.unbound += n
	}
	for _, a := range pins {
		p := c.pins[a]
		if p == nil {
			p = &pinCount{}
			c.pins[a] = p
		}
		was := p.boundOnly()
		if bound {
			p.bound += n
		} else {
			p.unbound += n
		}
		t.countPin(h.Namespace, a, was, p.boundOnly())
		if *p == (pinCount{}) {
			delete(c.pins, a)
			delete(t.pinned[a], h)
		} else {
			if t.pinned[a] == nil {
				t.pinned[a] = map[mesh.NamespacedHost]bool{}
			}
			t.pinned[a][h] = true
		}
		if len(t.pinned[a]) == 0 {
			delete(t.pinned, a)
		}
		t.mark(a)
		t.touch(a)
	}
	if c.unbound+c.bound == 0 && len(c.pins) == 0 {
		delete(t.claims, h)
	}
}

// touch has all that is decided about an address decided again.
func (t *Table) touch(a netip.Addr) {
	if h, held := t.holders[a]; held {
		t.dirty[h] = true
	}
	for h := range t.pinned[a] {
		t.dirty[h] = true
	}
}

// giveIPv4 lets a host have an address.
func (t *Table) giveIPv4(h mesh.NamespacedHost, a netip.Addr) {
	t.has[h] = pair{a, t.has[h].ipv6}
	t.holders[a] = h
	t.mark(a)
	t.touch(a) // as for IPv6
	t.count[h.Namespace]++
	t.unsaved = true
}

func (t *Table) giveIPv6(h mesh.NamespacedHost, a netip.Addr) {
	t.has[h] = pair{t.has[h].ipv4, a}
	t.holders[a] = h
	t.touch(a) // who has it as its own does not get it
}

// takeIPv4 takes the address from a host that has one.
func (t *Table) takeIPv4(h mesh.NamespacedHost) {
	x := t.has[h]
	if _, rests := t.left[h]; rests {
		delete(t.left, h)
		decrement(t.resting, h.Namespace)
	} else {
		decrement(t.count, h.Namespace)
	}
	t.keep(h, pair{ipv6: x.ipv6}, x.ipv4)
	t.unsaved = true
}

func (t *Table) takeIPv6(h mesh.NamespacedHost) {
	x := t.has[h]
	t.keep(h, pair{ipv4: x.ipv4}, x.ipv6)
}

// keep lets a host have what is left to it without an address.
func (t *Table) keep(h mesh.NamespacedHost, left pair, without netip.Addr) {
	if t.has[h] = left; left == (pair{}) {
		delete(t.has, h)
	}
	delete(t.holders, without)
	t.mark(without)
	t.touch(without)
}

func decrement(m map[string]int, key string) {
	if m[key]--; m[key] == 0 {
		delete(m, key)
	}
}

// leave has the address of a host rest.
func (t *Table) leave(h mesh.NamespacedHost, at time.Duration) {
	if t.left[h] = at; len(t.left) == 1 || at+Rest < t.end {
		t.end = at + Rest
	}
	t.unsaved = true
	decrement(t.count, h.Namespace)
	t.resting[h.Namespace]++
}

// back gives a host the address that rests for it.
func (t *Table) back(h mesh.NamespacedHost) {
	delete(t.left, h)
	t.unsaved = true
	decrement(t.resting, h.Namespace)
	t.count[h.Namespace]++
}

// Assign decides on what has changed, and returns the allocations that are others than
// before. elapsed is how long the server has run since the last call. If incomplete, some
// source has not been read yet: a host that nobody names may be there, and keeps its address.
func (t *Table) Assign(elapsed time.Duration, incomplete bool) map[mesh.NamespacedHost]mesh.Allocation {
	t.running += max(0, elapsed)
	t.unsaved = t.unsaved || len(t.left) > 0 && t.running-t.saved >= saveAfter
	t.expire()
	changed := map[mesh.NamespacedHost]mesh.Allocation{}
	var gone []mesh.NamespacedHost // nobody names them, and something may
	for len(t.dirty) > 0 {
		dirty := slices.SortedFunc(maps.Keys(t.dirty), mesh.NamespacedHost.Compare)
		clear(t.dirty)
		var newcomers []mesh.NamespacedHost
		for _, h := range dirty { // first what makes room
			if t.release(h, incomplete) {
				newcomers = append(newcomers, h)
			} else if incomplete {
				gone = append(gone, h)
			}
			changed[h] = mesh.Allocation{}
		}
		if t.free > 0 || len(t.left) > 0 {
			for h := range t.without {
				newcomers = append(newcomers, h)
				changed[h] = mesh.Allocation{}
			}
			slices.SortFunc(newcomers, mesh.NamespacedHost.Compare)
			newcomers = slices.Compact(newcomers)
		}
		for _, h := range newcomers {
			t.place(h)
		}
	}
	for h := range changed {
		changed[h] = t.of(h)
	}
	for _, h := range gone {
		t.dirty[h] = true
	}
	return changed
}

// needs reports whether a host is to have an allocated address: it has none of its own, or
// only those of others.
func (t *Table) needs(h mesh.NamespacedHost) bool {
	return t.claims[h].needs() || len(t.refused(h)) > 0
}

// release takes from a host what it must not have, and reports whether it needs addresses.
func (t *Table) release(h mesh.NamespacedHost, incomplete bool) bool {
	if a := t.has[h].ipv4; a.IsValid() && t.pinnedAway(a, h) {
		t.takeIPv4(h)
	}
	if a := t.has[h].ipv6; a.IsValid() && t.pinnedAway(a, h) {
		t.takeIPv6(h)
	}
	if t.needs(h) {
		return true
	}
	delete(t.without, h)
	if incomplete {
		return false
	}
	if t.has[h].ipv6.IsValid() {
		t.takeIPv6(h)
	}
	if _, rests := t.left[h]; !rests && t.has[h].ipv4.IsValid() {
		t.leave(h, t.running)
	}
	return false
}

// place gives a host that needs addresses those that it lacks.
func (t *Table) place(h mesh.NamespacedHost) {
	delete(t.without, h)
	if _, rests := t.left[h]; rests {
		t.back(h)
	}
	if !t.has[h].ipv4.IsValid() {
		if a, ok := t.findIPv4(h); ok {
			t.giveIPv4(h, a)
		} else {
			t.without[h] = true
		}
	}
	if !t.has[h].ipv6.IsValid() {
		if a, ok := t.findIPv6(h); ok {
			t.giveIPv6(h, a)
		}
	}
}

// endRest ends the rest of the address that rests longest, of the namespace in which most
// rest: a namespace that makes up names displaces its own. It reports whether there was one.
func (t *Table) endRest() bool {
	most := ""
	for ns, n := range t.resting {
		if most == "" || cmp.Or(cmp.Compare(n, t.resting[most]), cmp.Compare(most, ns)) > 0 {
			most = ns
		}
	}
	var oldest *mesh.NamespacedHost
	for h, at := range t.left {
		if h.Namespace == most && (oldest == nil || cmp.Or(cmp.Compare(at, t.left[*oldest]), h.Compare(*oldest)) < 0) {
			oldest = &h
		}
	}
	if oldest == nil {
		return false
	}
	t.takeIPv4(*oldest)
	return t.free > 0
}

// expire ends rests that are over.
func (t *Table) expire() {
	if len(t.left) == 0 || t.running < t.end {
		return
	}
	for h, at := range t.left {
		if t.running-at >= Rest {
			t.takeIPv4(h)
		}
	}
	t.end = math.MaxInt64
	for _, at := range t.left {
		t.end = min(t.end, at+Rest)
	}
}

// of is what is in force for a host.
func (t *Table) of(h mesh.NamespacedHost) mesh.Allocation {
	a := mesh.Allocation{Refused: t.refused(h)}
	if !t.needs(h) {
		return a
	}
	x := t.has[h]
	a.IPv4, a.IPv6, a.Full = x.ipv4, x.ipv6, !x.ipv4.IsValid()
	a.Moved = x.ipv4.IsValid() && x.ipv4 != slotAddress(t.ipv4, hashedSlot(t.ipv4, h)) || x.ipv6.IsValid() && x.ipv6 != hashedIPv6(h, 0)
	return a
}

// Unsaved reports whether there is something to save, and expects it to be saved.
func (t *Table) Unsaved() bool {
	was := t.unsaved
	t.unsaved, t.saved = false, t.running
	return was
}

// Resting is the number of addresses that rest.
func (t *Table) Resting() int { return len(t.left) }

// Save is what a new table needs to go on.
func (t *Table) Save() Saved {
	out := Saved{Running: t.running, Hosts: make(map[mesh.NamespacedHost]SavedAddress, len(t.has))}
	for h, a := range t.has {
		if !a.ipv4.IsValid() {
			continue
		}
		x := SavedAddress{IPv4: a.ipv4}
		if at, rests := t.left[h]; rests {
			x.Left = &at
		}
		out.Hosts[h] = x
	}
	return out
}

// Of allocates addresses without a record, as a server does that starts with nothing.
// bindings are those of the sources, in the order of their fragments.
func Of(ipv4 netip.Prefix, fragments []*mesh.Fragment, bindings []*mesh.Binding) *mesh.Allocations {
	t, _ := New(ipv4, Saved{}) // whose errors are about what was saved
	for i, f := range fragments {
		for _, svc := range f.Services {
			t.claim(svc, i < len(bindings) && bindings[i] != nil, 1)
		}
	}
	var none *mesh.Allocations
	return none.With(t.Assign(0, false))
}
