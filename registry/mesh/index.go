package mesh

import (
	"cmp"
	"slices"
)

// index holds what a Snapshot answers by look-up. Built once, then read-only.
type index struct {
	servicesByHost     map[Hostname][]*Service
	workloadsByNS      map[string][]*Workload
	workloadsByAddress map[string][]*Workload
	endpoints          map[*Service][]*Workload
	services           map[*Workload][]*Service
}

// RootNamespace is the namespace whose policies hold for the whole mesh.
func (s *Snapshot) RootNamespace() string { return s.MeshConfig.Spec.GetRootNamespace() }

// TrustDomain is the name of the authority that this mesh's identities end in.
func (s *Snapshot) TrustDomain() string { return s.MeshConfig.Spec.GetTrustDomain() }

// ServicesOn returns the services of a host name, in any namespace, the one
// that wins a conflict first.
func (s *Snapshot) ServicesOn(host Hostname) []*Service { return s.index.servicesByHost[host] }

// EndpointsOf returns the workloads behind a service: those its selector
// chooses in its namespace, or those written inside it. Unhealthy ones are
// among them. Sorted by Key, then address.
func (s *Snapshot) EndpointsOf(svc *Service) []*Workload { return s.index.endpoints[svc] }

// ServicesOf returns the services that select a workload, sorted as Services.
func (s *Snapshot) ServicesOf(w *Workload) []*Service { return s.index.services[w] }

// WorkloadsIn returns the workloads of a namespace, sorted by name.
func (s *Snapshot) WorkloadsIn(namespace string) []*Workload { return s.index.workloadsByNS[namespace] }

// WorkloadsAt returns the named workloads that have the address.
func (s *Snapshot) WorkloadsAt(address string) []*Workload {
	return s.index.workloadsByAddress[address]
}

// Selects reports whether every label of the selector is among the labels. An
// empty selector selects everything.
func Selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func (s *Snapshot) buildIndex() {
	x := index{
		servicesByHost:     map[Hostname][]*Service{},
		workloadsByNS:      map[string][]*Workload{},
		workloadsByAddress: map[string][]*Workload{},
		endpoints:          map[*Service][]*Workload{},
		services:           map[*Workload][]*Service{},
	}
	for _, w := range s.Workloads {
		x.workloadsByNS[w.Namespace] = append(x.workloadsByNS[w.Namespace], w)
		x.workloadsByAddress[w.Address] = append(x.workloadsByAddress[w.Address], w)
	}
	for _, svc := range s.Services {
		x.servicesByHost[svc.Hostname] = append(x.servicesByHost[svc.Hostname], svc)
		if svc.Selector == nil {
			x.endpoints[svc] = svc.Inline
			continue
		}
		for _, w := range x.workloadsByNS[svc.Namespace] {
			if Selects(svc.Selector, w.Labels) {
				x.endpoints[svc] = append(x.endpoints[svc], w)
				x.services[w] = append(x.services[w], svc)
			}
		}
	}
	s.index = x
}

func sortServices(list []*Service) {
	slices.SortStableFunc(list, func(a, b *Service) int {
		if c := cmp.Compare(a.Hostname, b.Hostname); c != 0 {
			return c
		}
		return compareMeta(&a.Meta, &b.Meta)
	})
}

func compareMeta(a, b *Meta) int {
	switch {
	case a.Before(b):
		return -1
	case b.Before(a):
		return 1
	default:
		return 0
	}
}
