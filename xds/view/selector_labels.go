package view

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// labelPair is a label with its value.
type labelPair struct{ key, value string }

// selectorLabels are the labels that DestinationRules and VirtualServices use to select
// clients, and Gateways their proxies. All other labels of a proxy make no difference to its own requests.
type selectorLabels struct {
	all         map[labelPair]bool            // for proxies of any namespace
	byNamespace map[string]map[labelPair]bool // for proxies of one namespace only
	gateways    map[labelPair]bool            // for gateways of any namespace
	// compared are the names of labels in which proxies and endpoints are compared: those of
	// failoverPriority, sorted.
	compared []string
}

func newSelectorLabels(s *mesh.Snapshot, routes []*virtualService) *selectorLabels {
	out := &selectorLabels{all: map[labelPair]bool{}, byNamespace: map[string]map[labelPair]bool{}, gateways: map[labelPair]bool{}}
	for _, g := range s.Gateways {
		for k, v := range g.Spec.GetSelector() {
			out.gateways[labelPair{k, v}] = true
		}
	}
	out.compared = comparedLabels(s.MeshConfig.Spec.GetLocalityLbSetting())
	for _, dr := range s.DestinationRules {
		eachPolicy(dr.Spec, func(lb *networking.LoadBalancerSettings, _ bool) {
			out.compared = append(out.compared, comparedLabels(lb.GetLocalityLbSetting())...)
		})
		for k, v := range dr.Spec.GetWorkloadSelector().GetMatchLabels() {
			if out.byNamespace[dr.Namespace] == nil {
				out.byNamespace[dr.Namespace] = map[labelPair]bool{}
			}
			out.byNamespace[dr.Namespace][labelPair{k, v}] = true
		}
	}
	slices.Sort(out.compared)
	out.compared = slices.Compact(out.compared)
	for _, vs := range routes {
		for _, l := range vs.sourceLabels {
			out.all[l] = true
		}
	}
	return out
}

// sameForSidecars reports whether the labels that make a difference to sidecars are the same.
func (s *selectorLabels) sameForSidecars(o *selectorLabels) bool {
	a, b := selectorLabels{all: s.all, byNamespace: s.byNamespace}, selectorLabels{all: o.all, byNamespace: o.byNamespace}
	return shallowEqual(&a, &b)
}

// labelSet is a set of labels.
type labelSet struct{ Labels map[string]string }

func (s *labelSet) all() map[string]string {
	if s == nil {
		return nil
	}
	return s.Labels
}

// relevant returns those labels of a proxy that some selector uses.
func (s *selectorLabels) relevant(ns string, labels map[string]string, gateway bool) map[string]string {
	own := s.byNamespace[ns]
	gateways := s.gateways
	if !gateway {
		gateways = nil
	}
	if len(s.all)+len(own)+len(gateways) == 0 {
		return nil
	}
	var out map[string]string
	for k, v := range labels {
		if l := (labelPair{k, v}); s.all[l] || own[l] || gateways[l] {
			if out == nil {
				out = map[string]string{}
			}
			out[k] = v
		}
	}
	return out
}

// sourceLabels are the labels by which a VirtualService selects its clients.
func sourceLabels(vs *virtualService) []labelPair {
	var out []labelPair
	add := func(m map[string]string) {
		for k, v := range m {
			out = append(out, labelPair{k, v})
		}
	}
	for _, r := range vs.http {
		for _, m := range r.GetMatch() {
			add(m.GetSourceLabels())
		}
	}
	for _, r := range vs.Spec.GetTcp() {
		for _, m := range r.GetMatch() {
			add(m.GetSourceLabels())
		}
	}
	for _, r := range vs.Spec.GetTls() {
		for _, m := range r.GetMatch() {
			add(m.GetSourceLabels())
		}
	}
	return out
}
