package xds

import (
	"slices"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/peeraddr"
)

// Refusal is a peer that was not let in.
type Refusal struct {
	Host        string // as far as authenticated; may be empty
	Peer        string // where it came from last; may be empty
	Node        string // the node id that it claimed; may be empty
	Reason      string
	First, Last time.Time
	Count       int
}

// Bounds on what is kept of refused peers, in all and of one host: it may say that
// it is any node.
const (
	maxRefusals       = 256
	maxRefusalsOfHost = 16
)

// refusals are the peers that were not let in lately.
type refusals struct {
	mu   sync.Mutex // guards list
	list []Refusal  // the one refused last at the end
}

func newRefusals() *refusals { return &refusals{} }

// add notes a refusal, and reports whether it is news.
func (r *refusals) add(n Refusal) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n.First, n.Count = n.Last, 1
	news := true
	i := slices.IndexFunc(r.list, n.repeats)
	if i >= 0 {
		old := r.list[i]
		n.First, n.Count = old.First, old.Count+1
		news = old.Reason != n.Reason || n.Last.Sub(old.Last) > 10*time.Minute
		r.list = slices.Delete(r.list, i, i+1)
	}
	r.list = append(r.list, n)
	r.trim(n.Host)
	return news
}

// repeats reports whether a refusal is of the same peer as another one. Unauthenticated peers
// are told apart by where they come from.
func (n Refusal) repeats(o Refusal) bool {
	return n.Host == o.Host && n.Node == o.Node && (n.Host != "" || peeraddr.Group(n.Peer) == peeraddr.Group(o.Peer))
}

// trim makes room after one of a host was added. Nobody who comes often pushes out
// the host that a person looks for, unauthenticated peers least of all.
func (r *refusals) trim(host string) {
	if host != "" {
		of := func(o Refusal) bool { return o.Host == host }
		if n := countOf(r.list, of); n > maxRefusalsOfHost {
			i := slices.IndexFunc(r.list, of)
			r.list = slices.Delete(r.list, i, i+1)
		}
	}
	if len(r.list) > maxRefusals {
		i := max(0, slices.IndexFunc(r.list, func(o Refusal) bool { return o.Host == "" }))
		r.list = slices.Delete(r.list, i, i+1)
	}
}

func countOf[T any](list []T, is func(T) bool) int {
	n := 0
	for _, x := range list {
		if is(x) {
			n++
		}
	}
	return n
}

// forget drops what was noted of a peer that is now let in.
func (r *refusals) forget(host, node string) {
	node = clip(node, 256) // as it was noted
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = slices.DeleteFunc(r.list, func(o Refusal) bool { return o.Host == host && (o.Node == node || o.Node == "") })
}

// Refused lists the peers that were not let in lately, the newest first.
func (s *Server) Refused() []Refusal {
	s.refused.mu.Lock()
	defer s.refused.mu.Unlock()
	out := slices.Clone(s.refused.list)
	slices.Reverse(out)
	return out
}
