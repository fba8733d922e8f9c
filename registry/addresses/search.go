package addresses

import (
	"math/bits"
	"net/netip"

	"github.com/fairlead/fairlead/registry/mesh"
)

// mark keeps the bit of an address up to date.
func (t *Table) mark(a netip.Addr) {
	slot, ok := slotOf(t.ipv4, a)
	if !ok {
		return
	}
	_, held := t.holders[a]
	is := held || len(t.pinned[a]) > 0
	word, bit := &t.taken[slot/64], uint64(1)<<(slot%64)
	switch was := *word&bit != 0; {
	case is && !was:
		*word |= bit
		t.free--
	case !is && was:
		*word &^= bit
		t.free++
	}
}

// findIPv4 finds a free address, from the hashed slot on.
func (t *Table) findIPv4(h mesh.NamespacedHost) (netip.Addr, bool) {
	if c := t.claims[h]; c.unbound == 0 && t.count[h.Namespace] >= int(capacity(t.ipv4))/boundShare {
		return netip.Addr{}, false
	}
	if t.free == 0 {
		if a, ok := t.pinBeyondShare(h.Namespace); ok {
			return a, true
		}
		if !t.endRest() {
			return netip.Addr{}, false
		}
	}
	return slotAddress(t.ipv4, t.nextFree(hashedSlot(t.ipv4, h))), true
}

// nextFree is the first free slot from one on; there must be one.
func (t *Table) nextFree(from uint32) uint32 {
	n := uint32(len(t.taken))
	for i := range n + 1 {
		at := (from/64 + i) % n
		open := ^t.taken[at]
		if i == 0 {
			open &= ^uint64(0) << (from % 64)
		}
		if at == n-1 && capacity(t.ipv4)%64 != 0 {
			open &= 1<<(capacity(t.ipv4)%64) - 1
		}
		if open != 0 {
			return at*64 + uint32(bits.TrailingZeros64(open))
		}
	}
	return from
}

// findIPv6 finds an address that nobody has. These addresses are on no record, so that a tenant who
// writes one of another namespace into a manifest would have it after the next restart: the hash
// counts for more.
func (t *Table) findIPv6(h mesh.NamespacedHost) (netip.Addr, bool) {
	for try := range byte(ipv6Tries) {
		a := hashedIPv6(h, try)
		if _, held := t.holders[a]; !held && !t.pinnedAway(a, h) {
			return a, true
		}
	}
	return netip.Addr{}, false
}
