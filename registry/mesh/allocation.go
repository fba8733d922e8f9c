package mesh

import (
	"crypto/sha256"
	"net/netip"
	"slices"
	"strings"
	"weak"

	"github.com/fairlead/fairlead/registry/metakeys"
)

// NamespacedHost is a host as one namespace declares it. Services of several objects that
// have both in common are one to their clients.
type NamespacedHost struct {
	Namespace string
	Host      Hostname
}

// Compare orders hosts by namespace, then by name.
func (h NamespacedHost) Compare(o NamespacedHost) int {
	if c := strings.Compare(h.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(string(h.Host), string(o.Host))
}

// Allocation is what the control plane decided on the addresses of a host.
type Allocation struct {
	// IPv4 and IPv6 are virtual addresses for a host that has none of its own; the zero
	// address if there is none.
	IPv4, IPv6 netip.Addr
	// Moved says that an address is not the one that the host's name hashes to, because it was
	// taken: on another server the host may have another one.
	Moved bool
	// Full says that the host has no IPv4 because there was none left for it.
	Full bool
	// Refused are addresses that the host's objects say are its own, and that another host has.
	// They are not used.
	Refused []string
}

// IsZero reports whether nothing was decided.
func (a Allocation) IsZero() bool {
	return !a.IPv4.IsValid() && !a.IPv6.IsValid() && !a.Full && len(a.Refused) == 0
}

// Equal reports whether two allocations are the same.
func (a Allocation) Equal(b Allocation) bool {
	return a.IPv4 == b.IPv4 && a.IPv6 == b.IPv6 && a.Moved == b.Moved && a.Full == b.Full && slices.Equal(a.Refused, b.Refused)
}

// addresses are those of both families, IPv4 first.
func (a Allocation) addresses() []string {
	var out []string
	for _, ip := range []netip.Addr{a.IPv4, a.IPv6} {
		if ip.IsValid() {
			out = append(out, ip.String())
		}
	}
	return out
}

// Allocations are the addresses that are in force at one time. They are immutable; nil has
// none.
type Allocations struct {
	hosts persistentMap[NamespacedHost, Allocation]
	// base are the allocations before, from which changed differ.
	base    weak.Pointer[Allocations]
	changed []NamespacedHost
}

// Of is the allocation of a host, or nothing.
func (a *Allocations) Of(h NamespacedHost) Allocation {
	if a == nil {
		return Allocation{}
	}
	return a.hosts.get(h)
}

// All yields every host and its allocation, in no order.
func (a *Allocations) All(yield func(NamespacedHost, Allocation) bool) {
	if a != nil {
		a.hosts.all(yield)
	}
}

// Len is the number of hosts.
func (a *Allocations) Len() int {
	if a == nil {
		return 0
	}
	return a.hosts.size
}

// With returns the allocations with others for some hosts. One that IsZero removes the host.
func (a *Allocations) With(changes map[NamespacedHost]Allocation) *Allocations {
	next := &Allocations{}
	var before persistentMap[NamespacedHost, Allocation]
	if a != nil {
		before, next.base = a.hosts, weak.Make(a)
	}
	hosts := before.edit()
	if before.size == 0 {
		hosts.resize(len(changes))
	}
	for h, allocation := range changes {
		switch {
		case a.Of(h).Equal(allocation):
			continue
		case allocation.IsZero():
			hosts.delete(h)
		default:
			hosts.put(h, allocation)
		}
		next.changed = append(next.changed, h)
	}
	if len(next.changed) == 0 {
		return a
	}
	next.hosts = hosts.persistentMap
	return next
}

// since are the hosts whose allocation may differ from an earlier one.
func (a *Allocations) since(prev *Allocations) []NamespacedHost {
	if a == prev {
		return nil
	}
	if a != nil && prev != nil && a.base == weak.Make(prev) {
		return a.changed
	}
	var out []NamespacedHost
	for h, was := range prev.All {
		if !a.Of(h).Equal(was) {
			out = append(out, h)
		}
	}
	for h := range a.All {
		if prev.Of(h).IsZero() {
			out = append(out, h)
		}
	}
	return out
}

// Allocations are the addresses that the snapshot has.
func (s *Snapshot) Allocations() *Allocations { return s.tables.allocations }

// NamespacedHost is the host of the service in its namespace.
func (s *Service) NamespacedHost() NamespacedHost { return NamespacedHost{s.Namespace, s.Hostname} }

// Allocatable reports whether the service gets virtual addresses. The rules are Istio's
// (pilot/pkg/networking/serviceentry/ip_autoallocation.go): it has none of its own, stands
// for one name, its resolution is not NONE, and its label
// networking.istio.io/enable-autoallocate-ip is not "false".
func (s *Service) Allocatable() bool {
	return len(s.Addresses) == 0 && !s.Hostname.IsWildcard() && s.Resolution != ResolutionNone &&
		!strings.EqualFold(s.Labels[metakeys.AutoallocateIP], "false")
}

// withAllocation returns the service with what was decided on its addresses: itself if that
// is nothing, prev if that has it already, else a copy.
func withAllocation(svc, prev *Service, all *Allocations) *Service {
	a := all.Of(svc.NamespacedHost())
	own := svc.Addresses
	if len(a.Refused) > 0 {
		own = slices.DeleteFunc(slices.Clone(own), func(x string) bool {
			return slices.ContainsFunc(a.Refused, func(r string) bool { return SameAddress(Hostname(r), Hostname(x)) }) // one may be IPv4 within IPv6
		})
	}
	var allocated []string
	if len(own) == 0 && (svc.Allocatable() || len(own) < len(svc.Addresses)) {
		allocated = a.addresses()
	}
	if len(allocated) == 0 && len(own) == len(svc.Addresses) {
		return svc
	}
	hash := hashWithAddresses(svc.Hash, own, allocated)
	if prev != nil && prev.Origin == svc.Origin && !hash.IsZero() && prev.Hash == hash && slices.Equal(prev.Inline, svc.Inline) {
		return prev
	}
	updated := *svc
	updated.Hash, updated.Addresses, updated.Allocated = hash, own, allocated
	return &updated
}

// hashWithAddresses is the hash of content with other addresses; unknown stays unknown.
func hashWithAddresses(h Hash, own, allocated []string) Hash {
	if h.IsZero() {
		return h
	}
	b := slices.Clone(h[:])
	for _, list := range [][]string{own, allocated} {
		b = append(append(b, 1), strings.Join(list, " ")...)
	}
	return sha256.Sum256(b)
}

// applyAllocations lays the allocated addresses over the services that are in force, of which
// d says the changes; after that, d knows of addresses.
func (s *Snapshot) applyAllocations(prev *Snapshot, d *Diff, now *Allocations) {
	p, t := &prev.tables, &s.tables
	t.allocations = now
	stale := map[*Service]bool{}
	for _, h := range now.since(p.allocations) {
		for _, svc := range prev.ServicesOn(h.Host) {
			if svc.Namespace == h.Namespace { // those of prev have their health
				if i, ok := slices.BinarySearchFunc(p.addressed, svc, compareServiceKeys); ok {
					stale[p.addressed[i]] = true
				}
			}
		}
	}
	addressed, deltas := overlayPass[*Service]{
		base: t.catalogs.inForce, deltas: DeltasOf[*Service](d), prev: p.addressed, stale: stale, order: compareServiceKeys,
		with: func(svc, before *Service) *Service { return withAllocation(svc, before, now) },
	}.apply()
	t.addressed = addressed
	note(d, deltas)
}
