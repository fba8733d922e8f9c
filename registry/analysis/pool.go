package analysis

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// label is one label of the workloads of a namespace; those of all of them have the
// namespace "".
type label struct{ namespace, key, value string }

// pool finds workloads by their labels, in a namespace or in all of them. The work depends on
// how many have the rarest label that is asked for.
type pool struct {
	in       map[string][]*workload
	labelled map[label][]*workload
}

func newPool() *pool { return &pool{in: map[string][]*workload{}, labelled: map[label][]*workload{}} }

func (p *pool) add(x *workload) {
	for _, ns := range []string{"", x.object.Meta.Namespace} {
		p.in[ns] = append(p.in[ns], x)
		for k, v := range x.labels {
			p.labelled[label{ns, k, v}] = append(p.labelled[label{ns, k, v}], x)
		}
	}
}

// candidates are the workloads among which those are that a policy's selector selects.
func (p *pool) candidates(namespace string, selector map[string]string) []*workload {
	candidates := p.in[namespace]
	for k, v := range selector {
		if l := p.labelled[label{namespace, k, v}]; len(l) < len(candidates) {
			candidates = l
		}
	}
	return candidates
}

// selected returns the workloads of a namespace, or of all if it is "", that a policy's
// selector selects, in the order of their objects.
func (p *pool) selected(namespace string, selector map[string]string) []*workload {
	var list []*workload
	for _, x := range p.candidates(namespace, selector) {
		if mesh.Selects(selector, x.labels) {
			list = append(list, x)
		}
	}
	return list
}

// any reports whether a policy's selector selects one.
func (p *pool) any(namespace string, selector map[string]string) bool {
	return slices.ContainsFunc(p.candidates(namespace, selector), func(x *workload) bool { return mesh.Selects(selector, x.labels) })
}

// selection is the workloads that a selector chooses. All objects of a namespace with the
// same selector have the same, so that what is known of it is found out once.
type selection struct {
	// namespace is the objects' own, scope the one that they choose from; "" is all.
	namespace, scope string
	workloads        []*workload
	// sure says that no WorkloadGroup could bring another.
	sure bool

	names []string // of the workloads, sorted, once they were asked for
	facts policyFacts
}

// chosen returns the workloads that an object's selector chooses. In the root
// namespace it chooses from all of them.
func (w *meshIndex) chosen(o *manifest.Object, labels map[string]string) *selection {
	words := []string{o.Meta.Namespace}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, k, labels[k])
	}
	key := strings.Join(words, "\x00")
	s := w.selections[key]
	if s == nil {
		s = &selection{namespace: o.Meta.Namespace, scope: o.Meta.Namespace}
		if s.scope == w.root {
			s.scope = ""
		}
		s.workloads = w.workloads.selected(s.scope, labels)
		s.sure = !w.groups.any(s.scope, labels)
		w.selections[key] = s
	}
	return s
}

// nameOf is a workload's name, with its namespace if that is not the objects'.
func (s *selection) nameOf(x *workload) string {
	if x.object.Meta.Namespace != s.namespace {
		return x.object.Meta.Namespace + "/" + x.object.Meta.Name
	}
	return x.object.Meta.Name
}

// namesOf are the names of workloads, sorted.
func (s *selection) namesOf(list []*workload) []string {
	names := make([]string, 0, len(list))
	for _, x := range list {
		names = append(names, s.nameOf(x))
	}
	slices.Sort(names)
	return names
}

// allNames are the names of all workloads of the selection, sorted.
func (s *selection) allNames() []string {
	if s.names == nil {
		s.names = s.namesOf(s.workloads)
	}
	return s.names
}

// bySelector finds what selects a workload among things with selectors. The work depends on
// how many of them ask for one of its labels, not on how many there are.
type bySelector[T any] struct {
	every   []T // without a selector
	byLabel map[label][]selecting[T]
}

type selecting[T any] struct {
	labels map[string]string
	item   T
}

func (x *bySelector[T]) add(labels map[string]string, item T) {
	if len(labels) == 0 {
		x.every = append(x.every, item)
		return
	}
	if x.byLabel == nil {
		x.byLabel = map[label][]selecting[T]{}
	}
	first := slices.Min(slices.Collect(maps.Keys(labels)))
	at := label{key: first, value: labels[first]}
	x.byLabel[at] = append(x.byLabel[at], selecting[T]{labels, item})
}

// narrower yields those with a selector that these labels fulfil.
func (x *bySelector[T]) narrower(labels map[string]string) func(yield func(T) bool) {
	return func(yield func(T) bool) {
		if x == nil {
			return
		}
		for _, k := range slices.Sorted(maps.Keys(labels)) {
			for _, s := range x.byLabel[label{key: k, value: labels[k]}] {
				if mesh.Selects(s.labels, labels) && !yield(s.item) {
					return
				}
			}
		}
	}
}

// listed is "a", "a and b" or "a, b and 7 more" of the first few.
func listed(names []string) string {
	const most = 5
	if more := len(names) - most; more > 0 {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", more)
	}
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
