package issue

import (
	"slices"
	"sync"
	"time"
)

// maxRefusals is how many refusals are kept for people to see.
const maxRefusals = 256

// Refusal is a caller that was turned away.
type Refusal struct {
	Time time.Time
	// Peer is the address, Host and ID what it proved or claimed; they may be
	// empty.
	Peer, Host, ID string
	Reason         string
}

// refusals are the last ones.
type refusals struct {
	mu   sync.Mutex // guards list
	list []Refusal
}

func (r *refusals) add(x Refusal) {
	x.ID, x.Reason = clip(x.ID), clip(x.Reason)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) == maxRefusals {
		r.list = slices.Delete(r.list, 0, 1)
	}
	r.list = append(r.list, x)
}

// Refusals are the last callers that were turned away, oldest first.
func (s *Service) Refusals() []Refusal {
	s.refusals.mu.Lock()
	defer s.refusals.mu.Unlock()
	return slices.Clone(s.refusals.list)
}
