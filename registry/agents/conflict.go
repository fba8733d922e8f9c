package agents

import (
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Conflict is a host that claims what is another's.
type Conflict struct {
	Namespace      string    `json:"namespace"`
	ServiceAccount string    `json:"service_account"`
	Network        string    `json:"network,omitempty"`
	Address        string    `json:"address"`
	Workload       string    `json:"workload"`
	Host           string    `json:"host"` // who claims it
	Holder         string    `json:"holder,omitempty"`
	Proof          string    `json:"proof"` // the holder's
	Reason         string    `json:"reason"`
	First          time.Time `json:"first"`
	Last           time.Time `json:"last"`
	Count          int       `json:"count"`
}

const (
	maxConflicts = 256
	// conflictFor is how long a conflict is told of after it was seen last.
	conflictFor = 10 * time.Minute
)

// conflict notes that a claim was refused, or that a claim was lost.
func (s *Source) conflict(e *RefusedError, now time.Time) {
	c := e.Claim
	n := Conflict{
		Namespace: c.ServiceAccount.Namespace, ServiceAccount: c.ServiceAccount.Name, Network: c.Network, Address: c.Address, Workload: c.Workload,
		Host: c.Host, Holder: e.Holder, Proof: e.Proof.String(), Reason: e.why, First: now, Last: now, Count: 1,
	}
	i := slices.IndexFunc(s.conflicts, func(o Conflict) bool { return o.same(n) })
	if i >= 0 {
		n.First, n.Count = s.conflicts[i].First, s.conflicts[i].Count+1
		s.conflicts = slices.Delete(s.conflicts, i, i+1)
	}
	s.conflicts = append(s.conflicts, n)
	if len(s.conflicts) > maxConflicts {
		s.conflicts = withoutLoudest(s.conflicts)
	}
}

// withoutLoudest drops the oldest conflict of the host with most of them: one host's
// do not push out another's.
func withoutLoudest(list []Conflict) []Conflict {
	count := map[string]int{}
	for _, c := range list {
		count[c.Host]++
	}
	most := 0
	for _, n := range count {
		most = max(most, n)
	}
	i := slices.IndexFunc(list, func(c Conflict) bool { return count[c.Host] == most })
	return slices.Delete(list, i, i+1)
}

func (c Conflict) same(o Conflict) bool {
	return c.Host == o.Host && c.Address == o.Address && c.Network == o.Network && c.Workload == o.Workload &&
		c.Namespace == o.Namespace && c.ServiceAccount == o.ServiceAccount
}

// settled drops what was noted of a claim that is granted.
func (s *Source) settled(c mesh.Claim) {
	s.conflicts = slices.DeleteFunc(s.conflicts, func(o Conflict) bool {
		return o.Host == c.Host && o.Address == c.Address && o.Network == c.Network && o.Workload == c.Workload
	})
}

// ClaimStatus is one workload that a host claims.
type ClaimStatus struct {
	Namespace      string    `json:"namespace"`
	ServiceAccount string    `json:"service_account"`
	Network        string    `json:"network,omitempty"`
	Address        string    `json:"address"`
	Workload       string    `json:"workload"`
	Host           string    `json:"host"`
	Proof          string    `json:"proof"`
	Since          time.Time `json:"since"`
	// Connected says that the host has a stream for it.
	Connected bool `json:"connected"`
}

// Claims are all that bind, by host, then by workload.
func (s *Source) Claims() []ClaimStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var out []ClaimStatus
	for _, l := range s.sorted {
		if s.bound(l, now) {
			out = append(out, ClaimStatus{
				Namespace: l.id.account.Namespace, ServiceAccount: l.id.account.Name, Network: l.id.network, Address: l.id.address, Workload: l.id.workload,
				Host: l.host, Proof: s.proven(l.claim).String(), Since: l.since, Connected: len(l.streams) > 0,
			})
		}
	}
	slices.SortStableFunc(out, func(a, b ClaimStatus) int { return strings.Compare(a.Host, b.Host) })
	return out
}
