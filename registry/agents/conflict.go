package agents

import (
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/internal/refusals"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Conflict is a host that claims the workload of another one.
type Conflict struct {
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"service_account"`
	Network        string `json:"network,omitempty"`
	Address        string `json:"address"`
	Workload       string `json:"workload"`
	Host           string `json:"host"` // who claims it
	Holder         string `json:"holder,omitempty"`
	Proof          string `json:"proof"` // the holder's
	Reason         string `json:"reason"`
	refusals.Times
}

// conflictFor is how long a conflict is listed after it was seen last.
const conflictFor = 10 * time.Minute

// conflict notes that a claim was refused, or that a claim was lost.
func (s *Source) conflict(e *RefusedError, now time.Time) {
	c := e.Claim
	s.conflicts.Add(Conflict{
		Namespace: c.ServiceAccount.Namespace, ServiceAccount: c.ServiceAccount.Name, Network: c.Network, Address: c.Address, Workload: c.Workload,
		Host: c.Host, Holder: e.Holder, Proof: e.Proof.String(), Reason: e.why,
	}, now)
}

// Repeats reports whether the host made the same claim earlier.
func (c Conflict) Repeats(earlier Conflict) bool {
	return c.Host == earlier.Host && c.Address == earlier.Address && c.Network == earlier.Network && c.Workload == earlier.Workload &&
		c.Namespace == earlier.Namespace && c.ServiceAccount == earlier.ServiceAccount
}

// By is the host that made the claim.
func (c Conflict) By() string { return c.Host }

// settled drops what was noted of a claim that is granted.
func (s *Source) settled(c mesh.Claim) {
	s.conflicts.Forget(func(o Conflict) bool {
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
