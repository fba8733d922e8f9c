package mesh

import (
	"fmt"
	"slices"
	"strings"
)

// Binding restricts a source to some namespaces. A source without one may write for the
// whole mesh.
//
// What a bound source writes for a host that is not its own applies to clients in the
// object's own namespace only, whatever its exportTo; see [Input.Bindings].
type Binding struct {
	// Namespaces are those that the source's objects may be in; sorted. The source
	// itself sees to that.
	Namespaces []string
	// Hosts are patterns, such as "*.shop.internal", "orders.internal" or
	// "10.1.0.0/16": the hosts and addresses that they cover are the source's, whoever
	// else names them.
	Hosts []Hostname
	// Credentials are the credentialNames of DestinationRules that proxies of other namespaces
	// use for the source. Those of the rule's own namespace use any that their hosts have.
	Credentials []string
	// RoutesOnly says that gateways of other namespaces follow no route of the source to a service of
	// another bound source that does not name the route's namespace in its exportTo.
	RoutesOnly bool
	// Source is what settings call the source, in messages: its directory, or [KeysSource]; empty if
	// nobody has said.
	Source string
}

// has reports whether the source may write for a namespace.
func (b *Binding) has(namespace string) bool { return slices.Contains(b.Namespaces, namespace) }

// shares reports whether a namespace is of both bindings.
func (b *Binding) shares(o *Binding) bool { return slices.ContainsFunc(o.Namespaces, b.has) }

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
// be ambiguous, unless a namespace is of both: then the name belongs to both sources.
func Overlap(a, b *Binding) (Hostname, Hostname, bool) {
	if a.shares(b) {
		return "", "", false
	}
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
