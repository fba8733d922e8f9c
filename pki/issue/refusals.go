package issue

import (
	"crypto/x509"
	"time"

	"github.com/fairlead/fairlead/internal/peeraddr"
	"github.com/fairlead/fairlead/internal/refusals"
)

// Refusal is a caller that was turned away.
type Refusal struct {
	// Peer is the address, Host and ID what it proved or claimed; they may be
	// empty.
	Peer, Host, ID string
	Reason         string
	refusals.Times
}

// Repeats reports whether a refusal differs from an earlier one in time and port
// alone.
func (r Refusal) Repeats(earlier Refusal) bool {
	return r.Host == earlier.Host && r.ID == earlier.ID && r.Reason == earlier.Reason && peeraddr.Group(r.Peer) == peeraddr.Group(earlier.Peer)
}

// By is the host that was turned away.
func (r Refusal) By() string { return r.Host }

// Refusals are the last callers that were turned away, the one refused last at
// the end.
func (s *Service) Refusals() []Refusal { return s.refusals.All() }

// ForgetRefusals drops refusals that a person has seen to.
func (s *Service) ForgetRefusals(which func(Refusal) bool) { s.refusals.Forget(which) }

// note adds a refusal to the list, and reports whether it is news.
func (s *Service) note(r Refusal, now time.Time) bool {
	r.Host, r.ID, r.Reason = clip(r.Host), clip(r.ID), clip(r.Reason)
	earlier, again := s.refusals.Add(r, now)
	return !again || now.Sub(earlier.Last) > refusals.QuietFor
}

// refuse logs why, at a limited rate if it repeats, and returns the error for the caller.
func (s *Service) refuse(c call, now time.Time, reason, answer error) error {
	news := s.note(Refusal{Peer: c.addr, Host: c.host, ID: c.id, Reason: reason.Error()}, now)
	args := []any{"host", c.host, "peer", c.addr, "spiffe_id", c.id, "err", reason}
	if omitted, ok := s.warns(c.proven(), news); ok {
		s.logger.Warn("certificate request rejected", append(args, "left_out", omitted)...)
	} else {
		s.logger.Debug("certificate request rejected again", args...)
	}
	return answer
}

// HandshakeRefused notes a client that did not come past the handshake. What its
// certificate says is worth nothing, so that only the log has it: a client that
// makes up names must not push others off the list.
func (s *Service) HandshakeRefused(peer string, chain []*x509.Certificate, reason error) {
	id := ""
	if len(chain) > 0 && len(chain[0].URIs) == 1 {
		id = clip(chain[0].URIs[0].String())
	}
	news := s.note(Refusal{Peer: peer, Reason: "its certificate is not one of this mesh"}, time.Now())
	args := []any{"peer", peer, "spiffe_id", id, "err", reason}
	if omitted, ok := s.warns("", news); ok {
		s.logger.Warn("client certificate rejected", append(args, "left_out", omitted)...)
	} else {
		s.logger.Debug("client certificate rejected again", args...)
	}
}

// warns reports whether a refusal gets a line in the log: it is news, and its peer
// has not caused too many. omitted are those that got none since the last line.
func (s *Service) warns(proven string, news bool) (omitted int, ok bool) {
	if !news {
		return 0, false
	}
	return s.lines.Allow(proven, time.Now())
}
