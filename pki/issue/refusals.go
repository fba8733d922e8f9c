package issue

import (
	"crypto/x509"
	"slices"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/peeraddr"
)

const (
	// maxRefusals is how many refusals are kept for people to see.
	maxRefusals = 256
	// againAfter is how long a refusal that repeats itself is not told again.
	againAfter = 10 * time.Minute
)

// Refusal is a caller that was turned away.
type Refusal struct {
	// Time is when that happened last, First when it happened first, and Count
	// how often it did.
	Time, First time.Time
	Count       int
	// Peer is the address, Host and ID what it proved or claimed; they may be
	// empty.
	Peer, Host, ID string
	Reason         string
}

// refusals are the last ones. Callers try again and again: what differs in time
// and port alone is one refusal.
type refusals struct {
	mu   sync.Mutex // guards list
	list []Refusal  // the one refused last at the end
}

// add notes a refusal, and reports whether it is news.
func (r *refusals) add(x Refusal) bool {
	x.Host, x.ID, x.Reason = clip(x.Host), clip(x.ID), clip(x.Reason)
	x.First, x.Count = x.Time, 1
	news := true
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.IndexFunc(r.list, x.repeats); i >= 0 {
		old := r.list[i]
		x.First, x.Count = old.First, old.Count+1
		news = x.Time.Sub(old.Time) > againAfter
		r.list = slices.Delete(r.list, i, i+1)
	}
	if len(r.list) == maxRefusals {
		// Unauthenticated peers go first: however often they come, they must not push out
		// the host that a person looks for.
		i := max(0, slices.IndexFunc(r.list, func(old Refusal) bool { return old.Host == "" }))
		r.list = slices.Delete(r.list, i, i+1)
	}
	r.list = append(r.list, x)
	return news
}

func (x Refusal) repeats(old Refusal) bool {
	return x.Host == old.Host && x.ID == old.ID && x.Reason == old.Reason && peeraddr.Group(x.Peer) == peeraddr.Group(old.Peer)
}

// Refusals are the last callers that were turned away, the one refused last at
// the end.
func (s *Service) Refusals() []Refusal {
	s.refusals.mu.Lock()
	defer s.refusals.mu.Unlock()
	return slices.Clone(s.refusals.list)
}

// refuse tells the log why, once in a while where it repeats itself, and gives
// back what the caller is told.
func (s *Service) refuse(c call, now time.Time, reason, answer error) error {
	news := s.refusals.add(Refusal{Time: now, Peer: c.addr, Host: c.host, ID: c.id, Reason: reason.Error()})
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
	news := s.refusals.add(Refusal{Time: time.Now(), Peer: peer, Reason: "its certificate is not one of this mesh"})
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
