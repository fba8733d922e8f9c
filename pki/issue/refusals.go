package issue

import (
	"net"
	"slices"
	"sync"
	"time"
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
		// Strangers go first: however often they come, they must not push out
		// the host that a person looks for.
		i := max(0, slices.IndexFunc(r.list, func(old Refusal) bool { return old.Host == "" }))
		r.list = slices.Delete(r.list, i, i+1)
	}
	r.list = append(r.list, x)
	return news
}

func (x Refusal) repeats(old Refusal) bool {
	return x.Host == old.Host && x.ID == old.ID && x.Reason == old.Reason && hostOf(x.Peer) == hostOf(old.Peer)
}

// hostOf is an address without its port.
func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}

// Refusals are the last callers that were turned away, the one refused last at
// the end.
func (s *Service) Refusals() []Refusal {
	s.refusals.mu.Lock()
	defer s.refusals.mu.Unlock()
	return slices.Clone(s.refusals.list)
}
