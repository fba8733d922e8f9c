package view

import (
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// policyIndex finds the policies of one kind that select a workload. The work depends on how
// many of them have one of its labels, not on how many there are.
type policyIndex[P selectable] struct {
	root       string
	namespaces map[string]*namespacePolicies[P]
	order      func(a, b P) int
}

// selectable is a policy: it is for workloads of its namespace or, in the root namespace, of
// all namespaces.
type selectable interface {
	comparable
	// MatchLabels are the labels of its selector; none means all workloads.
	MatchLabels() map[string]string
	Selects(namespace string, labels map[string]string, root string) bool
}

// namespacePolicies are the policies of one namespace.
type namespacePolicies[P any] struct {
	// every has no selector. selecting are by one label of their selector, the first by name.
	every     []P
	selecting map[label][]P
}

type label struct{ name, value string }

// indexPolicies indexes policies. Those for a workload are in some order, which is strict.
func indexPolicies[P selectable](root string, list []P, metaOf func(P) *mesh.Meta, order func(a, b P) int) *policyIndex[P] {
	x := &policyIndex[P]{root: root, namespaces: map[string]*namespacePolicies[P]{}, order: order}
	for _, p := range list {
		ns := metaOf(p).Namespace
		of := x.namespaces[ns]
		if of == nil {
			of = &namespacePolicies[P]{selecting: map[label][]P{}}
			x.namespaces[ns] = of
		}
		labels := p.MatchLabels()
		if len(labels) == 0 {
			of.every = append(of.every, p)
			continue
		}
		name := ""
		for k := range labels {
			if name == "" || k < name {
				name = k
			}
		}
		first := label{name, labels[name]}
		of.selecting[first] = append(of.selecting[first], p)
	}
	return x
}

// selecting returns the policies for a workload with these labels.
func (x *policyIndex[P]) selecting(ns string, labels map[string]string) []P {
	var out []P
	for _, of := range slices.Compact([]string{x.root, ns}) {
		policies := x.namespaces[of]
		if policies == nil {
			continue
		}
		out = append(out, policies.every...)
		for k, v := range labels {
			for _, p := range policies.selecting[label{k, v}] {
				if p.Selects(ns, labels, x.root) {
					out = append(out, p)
				}
			}
		}
	}
	slices.SortFunc(out, x.order)
	return out
}
