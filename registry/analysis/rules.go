package analysis

import (
	"fmt"
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// rule is a DestinationRule.
type rule struct {
	object *manifest.Object
	spec   *networking.DestinationRule
}

// ruleIndex finds DestinationRules by the host they are for.
type ruleIndex struct {
	byHost    map[mesh.Hostname][]rule
	wildcards []rule
}

func newRuleIndex(w *meshIndex) ruleIndex {
	x := ruleIndex{byHost: map[mesh.Hostname][]rule{}}
	for o, spec := range specs[*networking.DestinationRule](w) {
		host := w.fqdn(spec.Host, o.Meta.Namespace)
		if host.IsWildcard() {
			x.wildcards = append(x.wildcards, rule{o, spec})
		} else {
			x.byHost[host] = append(x.byHost[host], rule{o, spec})
		}
	}
	return x
}

// rulesFor returns the DestinationRules for the host that a client in the
// namespace can see.
func (w *meshIndex) rulesFor(host mesh.Hostname, namespace string) []rule {
	var list []rule
	for _, r := range w.rules.byHost[host] {
		if exported(r.spec.ExportTo, r.object.Meta.Namespace, namespace) {
			list = append(list, r)
		}
	}
	for _, r := range w.rules.wildcards {
		if w.fqdn(r.spec.Host, "").Covers(host) && exported(r.spec.ExportTo, r.object.Meta.Namespace, namespace) {
			list = append(list, r)
		}
	}
	return list
}

// ruleHosts warns of a DestinationRule for a host that nothing defines.
func ruleHosts(w *meshIndex, r *report) {
	for o, spec := range specs[*networking.DestinationRule](w) {
		host := w.fqdn(spec.Host, o.Meta.Namespace)
		if w.in.OtherSources || len(w.covered(host)) > 0 {
			continue
		}
		if host.IsWildcard() {
			r.warn(place{o, "spec.host"}, "no ServiceEntry defines a host that %q covers, so the rule has no effect", host)
			continue
		}
		r.warn(place{o, "spec.host"}, "no ServiceEntry defines the host %q%s, so the rule has no effect", host, w.nearHost(host))
	}
}

// covered returns the services whose host the name covers, or that cover it.
func (w *meshIndex) covered(host mesh.Hostname) []*service {
	if !host.IsWildcard() {
		visible, hidden := w.lookup(host, "")
		return append(visible, hidden...)
	}
	var list []*service
	for _, s := range w.services {
		if s.host.Overlaps(host) {
			list = append(list, s)
		}
	}
	return list
}

// emptySubsets warns of a subset whose labels no endpoint of the host has.
func emptySubsets(w *meshIndex, r *report) {
	for o, spec := range specs[*networking.DestinationRule](w) {
		services := w.covered(w.fqdn(spec.Host, o.Meta.Namespace))
		for i, s := range spec.Subsets {
			if n, known := w.inSubset(services, s.Labels); known && n == 0 {
				r.warn(place{o, fmt.Sprintf("spec.subsets[%d].labels", i)}, "no endpoint of %q has the labels of subset %q (%s); requests to it fail",
					spec.Host, s.Name, labelText(s.Labels))
			}
		}
	}
}

// inSubset counts the endpoints of the services that have the labels. known is
// false if some come only at run time, or there is nothing to count.
func (w *meshIndex) inSubset(services []*service, labels map[string]string) (n int, known bool) {
	for _, s := range services {
		list, sure := w.endpoints(s)
		if !sure || len(list) == 0 {
			return 0, false
		}
		for _, e := range list {
			if mesh.Selects(labels, e.labels) {
				n++
			}
		}
	}
	return n, len(services) > 0
}

func labelText(labels map[string]string) string {
	text := ""
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if text != "" {
			text += ", "
		}
		text += k + "=" + labels[k]
	}
	return text
}

// rulesTwice warns of two DestinationRules of one namespace for the same host and
// the same clients: they are merged, and only the first one's traffic policy counts.
func rulesTwice(w *meshIndex, r *report) {
	type key struct {
		namespace string
		host      mesh.Hostname
	}
	seen := map[key][]rule{}
	for o, spec := range specs[*networking.DestinationRule](w) {
		if spec.WorkloadSelector == nil {
			k := key{o.Meta.Namespace, w.fqdn(spec.Host, o.Meta.Namespace)}
			seen[k] = append(seen[k], rule{o, spec})
		}
	}
	for _, list := range seen {
		if len(list) < 2 {
			continue
		}
		slices.SortStableFunc(list, func(a, b rule) int { return before(a.object, b.object) })
		first := list[0]
		for _, later := range list[1:] {
			if later.spec.TrafficPolicy != nil {
				r.warn(place{later.object, "spec.trafficPolicy"}, "%s is for the same host %q and comes first, so this trafficPolicy has no effect; merge the two",
					first.object.Meta.Key, later.spec.Host)
			}
			for i, s := range later.spec.Subsets {
				same := func(x *networking.Subset) bool { return x.Name == s.Name }
				if slices.ContainsFunc(first.spec.Subsets, same) {
					r.warn(place{later.object, fmt.Sprintf("spec.subsets[%d].name", i)}, "%s has a subset %q for the same host and comes first, so this one has no effect",
						first.object.Meta.Key, s.Name)
				}
			}
		}
	}
}

// before orders objects as they win where two contradict.
func before(a, b *manifest.Object) int {
	switch {
	case a.Meta.Before(&b.Meta):
		return -1
	case b.Meta.Before(&a.Meta):
		return 1
	}
	return 0
}
