package mesh

import (
	"fmt"
	"slices"
	"strings"
)

// Binding restricts a source to some namespaces. A source without one may write for the
// whole mesh.
//
// A host belongs to a namespace. What a bound source writes for the host of another
// namespace applies to clients in its own namespace only, whatever its exportTo; see
// [Input.Bindings].
type Binding struct {
	// Namespaces are those that the source's objects may be in; sorted. The source
	// itself sees to that.
	Namespaces []string
	// Hosts are patterns, such as "*.shop.internal", "orders.internal" or
	// "10.1.0.0/16": the hosts and addresses that they cover are the source's, whoever
	// else names them.
	Hosts []Hostname
	// HostsOnly says that the source has no other hosts: being the only one to
	// declare a host does not make it the source's.
	HostsOnly bool
	// Credentials are the credentialNames of DestinationRules that proxies of other namespaces
	// use for the source. Those of the rule's own namespace use any that their hosts have.
	Credentials []string
}

// has reports whether the source may write for a namespace.
func (b *Binding) has(namespace string) bool { return slices.Contains(b.Namespaces, namespace) }

func namespaces(b *Binding) string {
	if len(b.Namespaces) == 1 {
		return "namespace " + b.Namespaces[0]
	}
	return fmt.Sprintf("namespaces %v", b.Namespaces)
}

// covers reports whether one of the patterns covers a host.
func (b *Binding) covers(h Hostname) bool {
	return slices.ContainsFunc(b.Hosts, func(p Hostname) bool { return covering(p, h) })
}

// overlaps returns a pattern that has a name in common with a host.
func (b *Binding) overlaps(h Hostname) (Hostname, bool) {
	i := slices.IndexFunc(b.Hosts, func(p Hostname) bool { return overlapping(p, h) })
	if i < 0 {
		return "", false
	}
	return b.Hosts[i], true
}

// Bound reports whether a source is bound to a namespace: what is written there may be of a tenant.
func (s *Snapshot) Bound(namespace string) bool { return s.tables.restrictions.owners.bound(namespace) }

// Overlap returns two patterns of two bindings that have a name in common. Its owner would
// be ambiguous.
func Overlap(a, b *Binding) (Hostname, Hostname, bool) {
	for _, p := range a.Hosts {
		if q, ok := b.overlaps(p); ok {
			return p, q, true
		}
	}
	return "", "", false
}

// ParseHostPattern reads a pattern of [Binding.Hosts]: a DNS name, or one whose
// first label is "*", or an IP address or a range of addresses.
func ParseHostPattern(s string) (Hostname, error) {
	h := strings.ToLower(strings.TrimSpace(s))
	if p, is := prefixOf(Hostname(h)); is {
		return nameOf(p), nil
	}
	rest, wildcard := strings.CutPrefix(h, "*.")
	if !wildcard {
		rest = h
	}
	for label := range strings.SplitSeq(rest, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "-") != label ||
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return "", fmt.Errorf("%q is not a host: write a DNS name such as orders.shop.internal, or *.shop.internal for all names below, or addresses such as 10.1.0.0/16", s)
		}
	}
	if len(h) > 253 {
		return "", fmt.Errorf("%q is not a host: it is longer than 253 characters", s)
	}
	return Hostname(h), nil
}

// Owner is the namespace that has a host.
type Owner struct {
	Namespace string
	// Routes says that the namespace has only routes for the host, which no service
	// has: whoever declares it comes first.
	Routes bool
}

// Owners is a record of the owners of hosts. It is immutable; nil is empty.
type Owners struct {
	hosts persistentMap[Hostname, Owner]
	// order are all hosts, and widths say which of them are wildcards or ranges.
	order  sortedNames
	widths wideNames
	// id is this record's own, from that of the record before, and changed what
	// differs. They keep no record alive.
	id, from *byte
	changed  []Hostname
}

func (o *Owners) identity() *byte {
	if o == nil {
		return nil
	}
	return o.id
}

// Of returns the owner of a host.
func (o *Owners) Of(h Hostname) (Owner, bool) {
	if o == nil {
		return Owner{}, false
	}
	owner := o.hosts.get(h)
	return owner, owner.Namespace != ""
}

// Len is the number of hosts.
func (o *Owners) Len() int {
	if o == nil {
		return 0
	}
	return o.hosts.size
}

// All yields every host and its owner, in no order.
func (o *Owners) All(yield func(Hostname, Owner) bool) {
	if o != nil {
		o.hosts.all(yield)
	}
}

// With returns the record with other owners for some hosts. An owner without a namespace
// removes the host.
func (o *Owners) With(owners map[Hostname]Owner) *Owners {
	if len(owners) == 0 {
		return o
	}
	next := &Owners{id: new(byte), from: o.identity()}
	var before persistentMap[Hostname, Owner]
	if o != nil {
		before = o.hosts
	}
	hosts := before.edit()
	if before.size == 0 {
		hosts.resize(len(owners))
	}
	added, dropped := map[Hostname]bool{}, map[Hostname]bool{}
	for h, owner := range owners {
		_, was := o.Of(h)
		if owner.Namespace == "" {
			hosts.delete(h)
			if was {
				dropped[h] = true
			}
		} else {
			hosts.put(h, owner)
			if !was {
				added[h] = true
			}
		}
		next.changed = append(next.changed, h)
	}
	next.hosts = hosts.persistentMap
	if o != nil {
		next.order, next.widths = o.order, o.widths
	}
	if len(added)+len(dropped) > 0 {
		next.order, next.widths = next.order.with(added, dropped), next.widths.with(added, dropped)
	}
	return next
}

// holder is who owns a name by the record: the entry for it, unless it is for routes only,
// or the narrowest wildcard or range that covers it.
func (o *Owners) holder(h Hostname) (name Hostname, owner Owner, known bool) {
	if owner, known := o.Of(h); known && !owner.Routes {
		return h, owner, true
	}
	if o == nil {
		return "", Owner{}, false
	}
	o.widths.above(h, func(x Hostname) bool {
		owner, known = o.Of(x)
		name = x
		return !known
	})
	return name, owner, known
}

// since returns the hosts that differ from another record. ok is false if that is not the
// previous record.
func (o *Owners) since(prev *Owners) ([]Hostname, bool) {
	switch {
	case o == prev:
		return nil, true
	case o != nil && o.from == prev.identity():
		return o.changed, true
	default:
		return nil, false
	}
}

// Decided are the hosts and addresses for which owners were decided again for this
// snapshot, sorted; none if no source is bound.
func (s *Snapshot) Decided() []Hostname { return s.tables.restrictions.decided }

// Grant is the owner of a host that is the first, or only one, to name it. It belongs on
// record, so that nobody else gets the host later.
func (s *Snapshot) Grant(h Hostname) (Owner, bool) { return Grants(s)(h) }

// Grants is [Snapshot.Grant] for many hosts, used by one goroutine.
func Grants(s *Snapshot) func(Hostname) (Owner, bool) {
	o := s.tables.restrictions.owners
	o.cache = newDecisionCache()
	return o.grant
}

// Claimed reports whether a namespace of a bound source names a host for other namespaces
// too.
func (s *Snapshot) Claimed(h Hostname, namespace string) bool {
	return s.tables.restrictions.owners.claimed(h, namespace)
}
