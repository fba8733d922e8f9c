package agents

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Several workloads may have one address: those of several service accounts, or two of one.
// They all depend on which machine has the address. So a host that has proven the address for
// one workload excludes hosts that claim another workload there without a proof.

// neighbour is a host that claims, or holds, another workload at an address.
type neighbour struct {
	host string
	// rank is its own proof, and at reports whether it is connected from the address.
	rank mesh.Proof
	at   func(address netip.Addr) bool
}

// keepsOut reports whether the holder of one workload has proven its address to
// those of a namespace, against a host with another workload there.
func (s *Source) keepsOut(l *lease, namespace string, n neighbour) (mesh.Proof, bool) {
	if l.host == "" || l.host == n.host {
		return mesh.Unproven, false
	}
	proof := l.proof
	if proof == mesh.ByAnnotation && l.id.account.Namespace != namespace {
		proof = l.machine // who writes the objects of one namespace decides nothing for another
	}
	proof = s.worth(proof, l.source)
	// A token and an annotation say of the other workload, too, whose it is: two agents
	// of one machine.
	if proof == mesh.Unproven || n.rank >= min(proof, mesh.ByToken) {
		return proof, false
	}
	if a, err := netip.ParseAddr(l.id.address); err == nil && n.at(a.Unmap().WithZone("")) {
		return proof, false
	}
	return proof, true
}

// provenTo is the lease that keeps a host out of a workload at an address, or nil.
func (s *Source) provenTo(p location, namespace string, n neighbour, now time.Time) (*lease, mesh.Proof) {
	for _, l := range s.there[p] {
		if proof, out := s.keepsOut(l, namespace, n); out && s.bound(l, now) {
			return l, proof
		}
	}
	return nil, mesh.Unproven
}

// checkNeighbours rejects a claim without proof to an address that another host has proven.
func (s *Source) checkNeighbours(c mesh.Claim, mine claim, now time.Time) *RefusedError {
	n := neighbour{c.Host, s.proven(mine), func(a netip.Addr) bool { return a == c.Source }}
	l, proof := s.provenTo(placementOf(c).location(), c.ServiceAccount.Namespace, n, now)
	if l == nil {
		return nil
	}
	return refusal(c, l.claim, proof,
		"%s is of host %q (%s, for workload %s/%s), and host %q neither connects from there nor proves that workload %s/%s is its own: annotate the WorkloadEntry with %s: %s, make its token with --address %s, or remove host %q",
		where(c.Network, c.Address), l.host, describe(proof), l.id.account.Namespace, l.id.workload, c.Host, c.ServiceAccount.Namespace, c.Workload,
		mesh.AnnotationHost, c.Host, flagOf(c.Network, c.Address), l.host)
}

// clearNeighbours ends the claims of other hosts that are not allowed now that the address of
// a lease is proven: the order does not matter.
func (s *Source) clearNeighbours(l *lease, now time.Time) (notify []func()) {
	for _, o := range s.there[l.id.location()] {
		if o == l || o.host == "" || len(o.streams) == 0 {
			continue
		}
		n := neighbour{o.host, s.proven(o.claim), func(a netip.Addr) bool { return s.connectedFrom(o, a) }}
		proof, out := s.keepsOut(l, o.id.account.Namespace, n)
		if !out {
			continue
		}
		lost := mesh.Claim{
			Host: o.host, Binding: o.binding, Network: o.id.network, Address: o.id.address, ServiceAccount: o.id.account, Workload: o.id.workload,
		}
		reason := fmt.Sprintf("%s is of host %q now (%s, for workload %s/%s); host %q had workload %s/%s there, and does not connect from there",
			where(o.id.network, o.id.address), l.host, describe(proof), l.id.account.Namespace, l.id.workload, o.host, o.id.account.Namespace, o.id.workload)
		notify = append(notify, s.evict(o, reason)...)
		s.logLoss(lost, l.host, proof, now)
		s.conflict(refusal(lost, l.claim, proof, "%s", reason), now)
		s.updateLease(o)
		s.elect(o.id.placement)
	}
	return notify
}

// connectedFrom reports whether a stream of a lease comes from an address.
func (s *Source) connectedFrom(l *lease, a netip.Addr) bool {
	for _, st := range l.streams {
		if s.from[st.stream].source == a {
			return true
		}
	}
	return false
}

// flagOf is how --address of a token names an address.
func flagOf(network, address string) string {
	if network == "" {
		return address
	}
	return network + "/" + address
}
