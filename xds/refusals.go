package xds

import (
	"slices"

	"github.com/fairlead/fairlead/internal/peeraddr"
	"github.com/fairlead/fairlead/internal/refusals"
)

// Refusal is a peer that was not admitted.
type Refusal struct {
	Host   string // if authenticated; may be empty
	Peer   string // the last remote address; may be empty
	Node   string // the node id that it claimed; may be empty
	Reason string
	refusals.Times
}

// Repeats reports whether a refusal is of the same peer as an earlier one. Unauthenticated
// peers are distinguished by address.
func (r Refusal) Repeats(earlier Refusal) bool {
	return r.Host == earlier.Host && r.Node == earlier.Node && (r.Host != "" || peeraddr.Group(r.Peer) == peeraddr.Group(earlier.Peer))
}

// By is the host that was not admitted.
func (r Refusal) By() string { return r.Host }

// forgetRefusals drops the refusals of a peer that is now admitted.
func (s *Server) forgetRefusals(host, node string) {
	node = sanitize(node, maxNodeID) // as it was noted
	s.refused.Forget(func(r Refusal) bool { return r.Host == host && (r.Node == node || r.Node == "") })
}

// ForgetRefused drops refusals that a person has seen to.
func (s *Server) ForgetRefused(which func(Refusal) bool) { s.refused.Forget(which) }

// Refused lists the peers that were not admitted lately, newest first.
func (s *Server) Refused() []Refusal {
	out := s.refused.All()
	slices.Reverse(out)
	return out
}
