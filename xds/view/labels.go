package view

import (
	"github.com/fairlead/fairlead/registry/mesh"
)

// labelPair is a label with its value.
type labelPair struct{ key, value string }

// labelPairs are the labels of proxies by which rules and routes choose. All
// else that a proxy has makes no difference to its own requests.
type labelPairs struct {
	all map[labelPair]bool
	of  map[string]map[labelPair]bool // for proxies of one namespace alone
}

func newLabelPairs(s *mesh.Snapshot, routes []*virtualService) *labelPairs {
	out := &labelPairs{all: map[labelPair]bool{}, of: map[string]map[labelPair]bool{}}
	for _, dr := range s.DestinationRules {
		for k, v := range dr.Spec.GetWorkloadSelector().GetMatchLabels() {
			if out.of[dr.Namespace] == nil {
				out.of[dr.Namespace] = map[labelPair]bool{}
			}
			out.of[dr.Namespace][labelPair{k, v}] = true
		}
	}
	for _, vs := range routes {
		for _, l := range vs.labels {
			out.all[l] = true
		}
	}
	return out
}

// labelSet is some labels.
type labelSet struct{ Labels map[string]string }

func (s *labelSet) all() map[string]string {
	if s == nil {
		return nil
	}
	return s.Labels
}

// chosen are those of a proxy's labels that make a difference.
func (p *labelPairs) chosen(ns string, labels map[string]string) map[string]string {
	own := p.of[ns]
	if len(p.all)+len(own) == 0 {
		return nil
	}
	var out map[string]string
	for k, v := range labels {
		if l := (labelPair{k, v}); p.all[l] || own[l] {
			if out == nil {
				out = map[string]string{}
			}
			out[k] = v
		}
	}
	return out
}

// sourceLabels are the labels by which a VirtualService chooses its clients.
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
