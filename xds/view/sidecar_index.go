package view

import "github.com/fairlead/fairlead/registry/mesh"

// sidecarIndex finds the Sidecar of a proxy.
type sidecarIndex struct {
	namespaces  map[string]*namespaceSidecars
	rootDefault *mesh.Sidecar // of the root namespace, without a selector
}

// namespaceSidecars are the Sidecars of one namespace.
type namespaceSidecars struct {
	// selecting are those with a selector, indexed by one label of the selector; an empty
	// selector has the zero label. The numbers are indexes of list.
	selecting        map[labelPair][]int
	list             []*mesh.Sidecar
	namespaceDefault *mesh.Sidecar // the first one without a selector
}

func newSidecarIndex(s *mesh.Snapshot) *sidecarIndex {
	x := &sidecarIndex{namespaces: map[string]*namespaceSidecars{}}
	for _, sc := range s.Sidecars {
		selector := sc.Spec.GetWorkloadSelector()
		if sc.Namespace == s.RootNamespace() && selector == nil && x.rootDefault == nil {
			x.rootDefault = sc
		}
		of := x.namespaces[sc.Namespace]
		if of == nil {
			of = &namespaceSidecars{selecting: map[labelPair][]int{}}
			x.namespaces[sc.Namespace] = of
		}
		if selector == nil {
			if of.namespaceDefault == nil {
				of.namespaceDefault = sc
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

// find returns the Sidecar of a proxy: the first of its namespace that selects it, else the
// first without a selector, else that of the root namespace; or nil.
func (x *sidecarIndex) find(p *Proxy) *mesh.Sidecar {
	if p.Type == Router {
		return nil
	}
	of := x.namespaces[p.ServiceAccount.Namespace]
	if of == nil {
		return x.rootDefault
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
	case of.namespaceDefault != nil:
		return of.namespaceDefault
	default:
		return x.rootDefault
	}
}
