package webhook

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"
)

// selectorLabels judges the labels that select workloads.
func (c cursor) selectorLabels(field string, m map[string]string) {
	for _, k := range sorted(m) {
		if k == "" {
			c.entry(field, k).wrong("the label key is empty")
		}
		if strings.Contains(k, "*") || strings.Contains(m[k], "*") {
			c.entry(field, k).wrong("labels are compared as they stand, %q cannot hold a wildcard; name the label's value", k+"="+m[k])
		}
	}
	if len(m) == 0 {
		c.warn("the selector has no labels and so selects every workload of the namespace; remove it, or name labels")
	}
}

// workloadSelector judges the selector of the networking API.
func (c cursor) workloadSelector(field string, s *networking.WorkloadSelector) {
	if s != nil {
		c.at(field).selectorLabels("labels", s.Labels)
	}
}

// targeting is what the policy kinds share: how they name what they apply to.
type targeting interface {
	GetSelector() *typev1beta1.WorkloadSelector
	GetTargetRefs() []*typev1beta1.PolicyTargetReference
}

// target judges how a policy names what it applies to.
func (c cursor) target(p targeting) {
	ways := 0
	if p.GetSelector() != nil {
		ways++
	}
	if len(p.GetTargetRefs()) > 0 {
		ways++
	}
	one, ok := p.(interface {
		GetTargetRef() *typev1beta1.PolicyTargetReference
	})
	if ok && one.GetTargetRef() != nil {
		ways++
		c.at("targetRef").targetRef(one.GetTargetRef())
	}
	if ways > 1 {
		c.wrong("selector, targetRef and targetRefs exclude one another; keep one of them")
	}
	c.policySelector("selector", p.GetSelector())
	for i, r := range p.GetTargetRefs() {
		c.item("targetRefs", i).targetRef(r)
	}
}

func (c cursor) policySelector(field string, s *typev1beta1.WorkloadSelector) {
	if s != nil {
		c.at(field).selectorLabels("matchLabels", s.MatchLabels)
	}
}

func (c cursor) targetRef(r *typev1beta1.PolicyTargetReference) {
	if r == nil {
		return
	}
	if r.Name == "" {
		c.at("name").wrong("the reference has no name")
	}
	if r.Namespace != "" {
		c.at("namespace").wrong("a policy cannot point into another namespace; remove the namespace and move the policy there")
	}
	if !isTargetKind(r.Group, r.Kind) {
		c.at("kind").wrong("a policy cannot point to a %q of group %q; it can to a Service, a ServiceEntry (networking.istio.io), "+
			"a Gateway or a GatewayClass (gateway.networking.k8s.io)", r.Kind, r.Group)
	}
}

func isTargetKind(group, kind string) bool {
	switch kind {
	case "Service":
		return group == "" || group == "core"
	case "ServiceEntry":
		return group == "networking.istio.io"
	case "Gateway", "GatewayClass":
		return group == "gateway.networking.k8s.io"
	}
	return false
}

// exported is what exportTo is judged with.
type exported struct {
	namespace string
	// service allows "~": a service that no proxy but its own sees.
	service bool
	// selector is true for a rule that applies only to chosen workloads, which
	// can never reach another namespace.
	selector bool
}

func (c cursor) exportTo(list []string, e exported) {
	seen := map[string]bool{}
	for i, entry := range list {
		at, key := c.item("exportTo", i), entry
		if entry == "." {
			key = e.namespace
		}
		switch {
		case seen[key]:
			at.wrong("%q repeats an entry above (\".\" is this object's namespace, %q); remove it", entry, e.namespace)
		case key == "~" && !e.service:
			at.wrong("\"~\" hides an object from everyone, which only a ServiceEntry can be; write \".\" to keep it in its namespace")
		case key != "*" && key != "~" && !isDNSLabel(key):
			at.wrong("%q is neither \"*\", \".\" nor the name of a namespace", entry)
		default:
			seen[key] = true
		}
	}
	c = c.at("exportTo")
	switch {
	case !e.selector || len(seen) == 0:
	case !seen[e.namespace]:
		c.wrong("a rule with a workloadSelector stays in its namespace; write \".\" or remove exportTo")
	case len(seen) > 1:
		c.wrong("a rule with a workloadSelector stays in its namespace; keep only \".\"")
	}
	if seen["*"] && len(list) > 1 {
		c.wrong("\"*\" already means every namespace; remove the other entries, or the \"*\"")
	}
	if seen["~"] && len(list) > 1 {
		c.wrong("\"~\" means no namespace; remove the other entries, or the \"~\"")
	}
}
