package mesh

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// CompareGateways is the order in which Gateways get what only one of them can have, such as a port. What is
// known to be older comes first, so that a new Gateway takes nothing from one that serves:
//
//   - those of sources that speak for the whole mesh, before those of sources that are bound to namespaces;
//   - those with a creationTimestamp, the oldest first;
//   - those without one in files, of which nobody knows the age: none of them loses to a new key;
//   - those without one in Consul's keys, as these were created.
//
// Among equals, the first by name, and then by namespace, comes first, as in Istio. Nothing of this depends on
// what a server has seen before, so all servers agree, also after a restart. Objects of other kinds are in the
// order of [Meta.Before]: there an object without a date counts as the oldest, so that nobody opens what it
// closes by writing a date.
func CompareGateways(a, b *Gateway) int {
	return cmp.Or(a.compareAge(b), strings.Compare(a.Name, b.Name), strings.Compare(a.Namespace, b.Namespace))
}

// compareAge is CompareGateways without the names.
func (g *Gateway) compareAge(o *Gateway) int {
	return cmp.Or(
		trueLast(g.Tenant, o.Tenant),
		trueLast(g.Created.IsZero(), o.Created.IsZero()), g.Created.Compare(o.Created),
		cmp.Compare(g.createIndex(), o.createIndex()), // 0 in files
	)
}

// createIndex is zero for an object with a date, which alone counts.
func (g *Gateway) createIndex() uint64 {
	if g.Created.IsZero() {
		return g.CreateIndex
	}
	return 0
}

func trueLast(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// compareServers is the order in which servers of Gateways get a port or a host: that of their Gateways. Of
// Gateways of one age, the servers with TLS come first: what is in plaintext shares a port with TLS that was there
// before, and not the other way round. Servers of one Gateway are as it has them, otherwise.
func compareServers(a, b *GatewayServer) int {
	return cmp.Or(a.Gateway.compareAge(b.Gateway), trueLast(!a.isTLS(), !b.isTLS()), CompareGateways(a.Gateway, b.Gateway))
}

// gatewayRanking is the Gateways of sources that are bound to namespaces, as they take part in the order: behind
// those of others. Whoever writes a file can write any creationTimestamp: where several of these sources
// have Gateways in one namespace, no date counts there.
type gatewayRanking struct {
	in, out [][]*Gateway
	ageless map[string]bool
	made    []map[*Gateway]*Gateway // by source, what was made of each object
}

// ranked makes the ranking of other lists.
func (r *gatewayRanking) ranked(lists [][]*Gateway, bindings []*Binding) gatewayRanking {
	known := len(r.in) == len(lists)
	if known && !slices.ContainsFunc(zip(r.in, lists), func(p [2][]*Gateway) bool { return !sameSlice(p[0], p[1]) }) {
		return *r
	}
	bound := make([]map[string]bool, 0, len(lists))
	for i, list := range lists {
		if bindings[i] != nil {
			bound = append(bound, datedIn(list))
		}
	}
	next := gatewayRanking{
		in: lists, out: make([][]*Gateway, len(lists)), ageless: sharedAndDated(bound), made: make([]map[*Gateway]*Gateway, len(lists)),
	}
	for i, list := range lists {
		if bindings[i] == nil || len(list) == 0 {
			next.out[i] = list
			continue
		}
		next.made[i] = make(map[*Gateway]*Gateway, len(list))
		for _, g := range list {
			ageless := next.ageless[g.Namespace]
			var made *Gateway
			if known && r.ageless[g.Namespace] == ageless {
				made = r.made[i][g]
			}
			if made == nil {
				made = g.ofTenant(ageless)
			}
			next.made[i][g] = made
			next.out[i] = append(next.out[i], made)
		}
		if known && slices.Equal(next.out[i], r.out[i]) {
			next.out[i] = r.out[i]
		}
	}
	return next
}

// ofTenant is the Gateway as one of a source that is bound to namespaces.
func (g *Gateway) ofTenant(ageless bool) *Gateway {
	out := *g
	out.Tenant, out.Hash = true, hashAs(g.Hash, "tenant")
	if ageless {
		out.Created, out.CreateIndex, out.Hash = time.Time{}, 0, hashAs(g.Hash, "ageless")
	}
	return &out
}
