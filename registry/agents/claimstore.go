package agents

import (
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// ClaimStore saves the hosts of workloads across restarts. Without it hosts claim again: a
// host with a proof shows it again, and without a proof the first host gets the workload.
type ClaimStore interface {
	// LoadClaims returns what was saved last, nothing if nothing was.
	LoadClaims() (SavedClaims, error)
	// SaveClaims is called by one goroutine at a time.
	SaveClaims(c SavedClaims) error
}

// SavedClaims is what a ClaimStore keeps.
type SavedClaims struct {
	Claims []SavedClaim `json:"claims"`
	// Shared are source addresses that several hosts had, which prove nothing.
	Shared []SharedSource `json:"shared_sources,omitempty"`
}

// SavedClaim is one claim that binds.
type SavedClaim struct {
	Network        string     `json:"network,omitempty"`
	Address        string     `json:"address"`
	Namespace      string     `json:"namespace"`
	ServiceAccount string     `json:"service_account"`
	Workload       string     `json:"workload"`
	Host           string     `json:"host"`
	Binding        string     `json:"binding"`
	Proof          string     `json:"proof"`
	Source         netip.Addr `json:"source,omitzero"`
	Since          time.Time  `json:"since"`
}

// SharedSource is an address that several hosts connected from.
type SharedSource struct {
	Address netip.Addr `json:"address"`
	Until   time.Time  `json:"until"`
}

// saveClaimsApart is the least time between two saves.
const saveClaimsApart = time.Second

// restoreClaims binds the workloads to their hosts again. A host that is no longer
// on record has none.
func (s *Source) restoreClaims(now time.Time) {
	if s.claimStore == nil {
		return
	}
	saved, err := s.claimStore.LoadClaims()
	if err != nil {
		s.log.Error("reading claims.json failed; hosts claim their workloads again", "err", err)
		return
	}
	for _, c := range saved.Claims {
		if c.Host == "" || c.Workload == "" || s.stands != nil && !s.stands(c.Host, c.Binding) {
			continue
		}
		l := s.leaseOf(id{placement{mesh.ServiceAccount{Namespace: c.Namespace, Name: c.ServiceAccount}, c.Network, c.Address}, c.Workload})
		if l == nil {
			return
		}
		l.claim = claim{host: c.Host, binding: c.Binding, proof: mesh.ParseProof(c.Proof), source: c.Source, since: c.Since}
		l.awaited, l.lost = true, now // its time begins anew: nobody could come back meanwhile
		s.updateLease(l)
		s.elect(l.id.placement)
	}
	for _, a := range saved.Shared {
		if now.Before(a.Until) {
			s.sources.note(a.Address, a.Until)
		}
	}
	s.claimsChanged = false
}

// claimSaver saves claims; the goroutine of Run owns it.
type claimSaver struct {
	s       *Source
	last    time.Time // of a save
	failing bool
	trouble string // why the last save failed, or empty
}

// save saves changes, and returns when to call it again; zero means not before something
// changes.
func (k *claimSaver) save(now time.Time) time.Time {
	if k.s.claimStore == nil {
		return time.Time{}
	}
	wait := saveClaimsApart
	if k.failing {
		wait = saveAgain
	}
	due := k.last.Add(wait)
	saved, changed := k.s.claimsToSave(now, now.Before(due))
	switch {
	case !changed:
		return time.Time{}
	case now.Before(due):
		return due
	}
	err := k.s.claimStore.SaveClaims(saved)
	if err != nil && !k.failing {
		k.s.log.Error("saving claims failed: after a restart another host may get an unproven address", "err", err)
	}
	k.failing, k.last, k.trouble = err != nil, now, ""
	if err == nil {
		return time.Time{}
	}
	k.trouble = err.Error()
	k.s.mu.Lock()
	k.s.claimsChanged = true
	k.s.mu.Unlock()
	return now.Add(saveAgain)
}

// claimsToSave are the binding claims, if something changed; with readOnly it only reports
// whether something changed.
func (s *Source) claimsToSave(now time.Time, readOnly bool) (out SavedClaims, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.claimsChanged || readOnly {
		return out, s.claimsChanged
	}
	s.claimsChanged = false
	out.Claims = []SavedClaim{}
	for _, l := range s.sorted {
		if s.bound(l, now) {
			out.Claims = append(out.Claims, SavedClaim{
				Network: l.id.network, Address: l.id.address, Namespace: l.id.account.Namespace, ServiceAccount: l.id.account.Name,
				Workload: l.id.workload, Host: l.host, Binding: l.binding, Proof: l.proof.String(), Source: l.source, Since: l.since.UTC(),
			})
		}
	}
	for a, until := range s.sources.several {
		if now.Before(until) {
			out.Shared = append(out.Shared, SharedSource{a, until.UTC()})
		}
	}
	slices.SortFunc(out.Shared, func(a, b SharedSource) int { return a.Address.Compare(b.Address) })
	return out, true
}
