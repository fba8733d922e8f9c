package server

import (
	"slices"

	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/registry/mesh"
)

// workloadName says who the workload of a host with an identity is in metrics, by what the mesh
// and the host's record say; the zero value if it may be one of several. It gives the host nothing:
// all workloads that it may be have the same identity.
func (s *Server) workloadName(h attest.Host, identity profile.Pair) profile.WorkloadName {
	account := mesh.ServiceAccount{Namespace: identity.Namespace, Name: identity.ServiceAccount}
	return nameOf(workloadsOf(s.registry.Snapshot(), account, h, s.agents.Held(h.Name, h.Binding.String(), account)))
}

// workloadsOf are the workloads of an account that a host may be: those that name it and those that
// it holds; or else those at an address of its join token; or else all that name no other host.
func workloadsOf(snapshot *mesh.Snapshot, account mesh.ServiceAccount, h attest.Host, held []string) []*mesh.Workload {
	if snapshot == nil {
		return nil
	}
	var own, at, all []*mesh.Workload
	for _, w := range snapshot.WorkloadsIn(account.Namespace) {
		if w.ServiceAccount != account.Name || w.Owner() != "" && w.Owner() != h.Name {
			continue
		}
		all = append(all, w)
		if w.Owner() == h.Name || slices.Contains(held, w.Name) {
			own = append(own, w)
		}
		if slices.ContainsFunc(h.Addresses, func(a attest.Address) bool {
			return a.IP.Unmap().String() == w.Address && (!a.InNetwork || a.Network == w.Network)
		}) {
			at = append(at, w)
		}
	}
	switch {
	case len(own) > 0:
		return own
	case len(at) > 0:
		return at
	}
	return all
}

// nameOf is the name that all workloads have; the zero value if they have several, or there is none.
func nameOf(workloads []*mesh.Workload) profile.WorkloadName {
	var out profile.WorkloadName
	for i, w := range workloads {
		r := w.Reported()
		name := profile.WorkloadName{Name: r.Name, Service: r.CanonicalName, Revision: r.CanonicalRevision}
		if i > 0 && name != out {
			return profile.WorkloadName{}
		}
		out = name
	}
	return out
}
