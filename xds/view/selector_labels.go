package view

import (
	"github.com/fairlead/fairlead/registry/mesh"
)

// labelPair is a label with its value.
type labelPair struct{ key, value string }

// selectorLabels are the labels that DestinationRules and VirtualServices use to select
// clients. All other labels of a proxy make no difference to its own requests.
type selectorLabels struct {
	all         map[labelPair]bool            // for proxies of any namespace
	byNamespace map[string]map[labelPair]bool // for proxies of one namespace only
}

func newSelectorLabels(s *mesh.Snapshot, routes []*virtualService) *selectorLabels {
	out := &selectorLabels{all: map[labelPair]bool{}, byNamespace: map[string]map[labelPair]bool{}}
	for _, dr := range s.DestinationRules {
		for k, v := range dr.Spec.GetWorkloadSelector().GetMatchLabels() {
			if out.byNamespace[dr.Namespace] == nil {
				out.byNamespace[dr.Namespace] = map[labelPair]bool{}
			}
			out.byNamespace[dr.Namespace][labelPair{k, v}] = true
		}
	}
	for _, vs := range routes {
		for _, l := range vs.sourceLabels {
			out.all[l] = true
		}
	}
	return out
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
func (s *selectorLabels) relevant(ns string, labels map[string]string) map[string]string {
	own := s.byNamespace[ns]
	if len(s.all)+len(own) == 0 {
		return nil
	}
	var out map[string]string
	for k, v := range labels {
		if l := (labelPair{k, v}); s.all[l] || own[l] {
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
