package addresses

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Addresses of the ranges that manifests name: pins.

// countPin counts a pin of a namespace that was, and is, of bound sources only.
func (t *Table) countPin(namespace string, a netip.Addr, was, is bool) {
	switch {
	case was == is || !a.Is4():
	case is:
		t.pins[namespace]++
	default:
		decrement(t.pins, namespace)
	}
}

// pinsOf are the addresses of the ranges that a service has as its own.
func (t *Table) pinsOf(svc *mesh.Service) []netip.Addr {
	var out []netip.Addr
	for _, text := range svc.Addresses {
		a, err := netip.ParseAddr(text)
		if p, wide := netip.ParsePrefix(text); wide == nil && p.IsSingleIP() {
			a, err = p.Addr(), nil
		}
		if a = a.Unmap(); err == nil && (t.ipv4.Contains(a) || ipv6Prefix().Contains(a)) {
			out = append(out, a)
		}
	}
	return out
}

// strong reports whether a host that has an address as its own gets it from the holder: the
// source may write for the whole mesh, or the holder is of the same namespace.
func (t *Table) strong(h mesh.NamespacedHost, a netip.Addr, holder mesh.NamespacedHost) bool {
	p := t.claims[h].pins[a]
	return p.unbound > 0 || h.Namespace == holder.Namespace
}

// pinnedAway reports whether the holder of an address has to give it to a host that has it as
// its own.
func (t *Table) pinnedAway(a netip.Addr, holder mesh.NamespacedHost) bool {
	for h := range t.pinned[a] {
		if h != holder && t.strong(h, a, holder) {
			return true
		}
	}
	return false
}

// refused are the addresses that a host has as its own, and that another host holds.
func (t *Table) refused(h mesh.NamespacedHost) []string {
	var out []string
	c := t.claims[h]
	if c == nil {
		return nil
	}
	for a := range c.pins {
		if holder, held := t.holders[a]; held && holder != h && !t.strong(h, a, holder) {
			out = append(out, a.String())
		}
	}
	slices.Sort(out)
	return out
}

// pinBeyondShare finds an address for a host of a namespace in a range that is full: one of those
// that another namespace has written into its manifests, if that has more than its share of them.
// So no tenant takes the addresses of all others by naming them, either.
func (t *Table) pinBeyondShare(namespace string) (netip.Addr, bool) {
	most := ""
	for ns, n := range t.pins {
		if ns != namespace && n > int(capacity(t.ipv4))/boundShare && (most == "" || cmp.Or(cmp.Compare(n, t.pins[most]), cmp.Compare(most, ns)) > 0) {
			most = ns
		}
	}
	if most == "" {
		return netip.Addr{}, false
	}
	var first netip.Addr
	for a, hosts := range t.pinned {
		if _, held := t.holders[a]; held || first.IsValid() && first.Less(a) || !a.Is4() {
			continue
		}
		if _, ok := slotOf(t.ipv4, a); !ok {
			continue
		}
		others := false
		for h := range hosts {
			others = others || h.Namespace != most || !t.claims[h].pins[a].boundOnly()
		}
		if !others {
			first = a
		}
	}
	return first, first.IsValid()
}
