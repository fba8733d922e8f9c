package xds

import (
	"slices"

	"github.com/fairlead/fairlead/internal/peeraddr"
	"github.com/fairlead/fairlead/internal/refusals"
)

// Refusal is a peer that was not let in.
type Refusal struct {
	Host   string // as far as authenticated; may be empty
	Peer   string // where it came from last; may be empty
	Node   string // the node id that it claimed; may be empty
	Reason string
	refusals.Times
}

// Repeats reports whether a refusal is of the same peer as an earlier one.
// Unauthenticated peers are told apart by where they come from.
func (r Refusal) Repeats(earlier Refusal) bool {
	return r.Host == earlier.Host && r.Node == earlier.Node && (r.Host != "" || peeraddr.Group(r.Peer) == peeraddr.Group(earlier.Peer))
}

// By is the host that was refused.
func (r Refusal) By() string { return r.Host }

// forgetRefusals drops what was noted of a peer that is now let in.
func (s *Server) forgetRefusals(host, node string) {
	node = clip(node, maxNode) // as it was noted
	s.refused.Forget(func(r Refusal) bool { return r.Host == host && (r.Node == node || r.Node == "") })
}

// Refused lists the peers that were not let in lately, the newest first.
func (s *Server) Refused() []Refusal {
	out := s.refused.All()
	slices.Reverse(out)
	return out
}
