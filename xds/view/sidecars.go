package view

import "github.com/fairlead/fairlead/registry/mesh"

// sidecarIndex finds the Sidecar of a proxy.
type sidecarIndex struct {
	namespaces map[string]*sidecarsOf
	forMesh    *mesh.Sidecar
}

// sidecarsOf are those of one namespace.
type sidecarsOf struct {
	// selecting are those with a selector, under one of its labels; those whose
	// selector is empty are under the zero label. Numbers are places in list.
	selecting map[labelPair][]int
	list      []*mesh.Sidecar
	all       *mesh.Sidecar // the first one without a selector
}

func newSidecarIndex(s *mesh.Snapshot) *sidecarIndex {
	x := &sidecarIndex{namespaces: map[string]*sidecarsOf{}}
	for _, sc := range s.Sidecars {
		selector := sc.Spec.GetWorkloadSelector()
		if sc.Namespace == s.RootNamespace() && selector == nil && x.forMesh == nil {
			x.forMesh = sc
		}
		of := x.namespaces[sc.Namespace]
		if of == nil {
			of = &sidecarsOf{selecting: map[labelPair][]int{}}
			x.namespaces[sc.Namespace] = of
		}
		if selector == nil {
			if of.all == nil {
				of.all = sc
			}
			continue
		}
		var under labelPair
		for k, v := range selector.GetLabels() {
			if l := (labelPair{k, v}); under == (labelPair{}) || len(of.selecting[l]) < len(of.selecting[under]) {
				under = l
			}
		}
		of.selecting[under] = append(of.selecting[under], len(of.list))
		of.list = append(of.list, sc)
	}
	return x
}

// find gives the Sidecar of a proxy: of its namespace the first that selects it,
// else the first for all, else the root namespace's; or nil.
func (x *sidecarIndex) find(p *Proxy) *mesh.Sidecar {
	if p.Type == Router {
		return nil
	}
	of := x.namespaces[p.ServiceAccount.Namespace]
	if of == nil {
		return x.forMesh
	}
	best := len(of.list)
	look := func(l labelPair) {
		for _, i := range of.selecting[l] {
			if i < best && mesh.Selects(of.list[i].Spec.GetWorkloadSelector().GetLabels(), p.Labels) {
				best = i
			}
		}
	}
	if len(of.list) > 0 {
		look(labelPair{})
		for k, v := range p.Labels {
			look(labelPair{k, v})
		}
	}
	switch {
	case best < len(of.list):
		return of.list[best]
	case of.all != nil:
		return of.all
	default:
		return x.forMesh
	}
}
