package view

import (
	"cmp"
	"slices"
	"strings"

	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Authorization is what AuthorizationPolicies say of one workload. All its inbound filter
// chains have the same.
type Authorization struct {
	// TrustDomains are the mesh's own, and then its aliases: a principal of one of them is
	// meant in all of them.
	TrustDomains []string
	// JoinsHeaders says that the Envoy joins several headers of one name before it compares
	// them.
	JoinsHeaders bool
	// Policies are all that select the workload, by namespace and name.
	Policies []AuthorizationPolicy

	origins []*mesh.Origin // of the policies, in their order
}

// Origin is where a policy is written, by its place in Policies.
func (a *Authorization) Origin(policy int) *mesh.Origin { return a.origins[policy] }

// AuthorizationPolicy is one policy that selects a workload.
type AuthorizationPolicy struct {
	Namespace, Name string
	Action          security.AuthorizationPolicy_Action
	Rules           []*security.Rule
	// DryRun policies decide nothing. Envoy counts what they would have decided.
	DryRun bool
}

// policyIndex finds the AuthorizationPolicies that select a workload. The work depends on how
// many of them have one of its labels, not on how many there are.
type policyIndex struct {
	root       string
	namespaces map[string]*namespacePolicies
}

// namespacePolicies are the policies of one namespace.
type namespacePolicies struct {
	// every has no selector. selecting are by one label of their selector, the first by name.
	every     []*mesh.AuthorizationPolicy
	selecting map[label][]*mesh.AuthorizationPolicy
}

type label struct{ name, value string }

func newPolicyIndex(s *mesh.Snapshot) *policyIndex {
	x := &policyIndex{root: s.RootNamespace(), namespaces: map[string]*namespacePolicies{}}
	for _, p := range s.AuthorizationPolicies {
		of := x.namespaces[p.Namespace]
		if of == nil {
			of = &namespacePolicies{selecting: map[label][]*mesh.AuthorizationPolicy{}}
			x.namespaces[p.Namespace] = of
		}
		labels := p.Spec.GetSelector().GetMatchLabels()
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

// selecting returns the policies for a workload with these labels, by namespace and name.
func (x *policyIndex) selecting(ns string, labels map[string]string) []*mesh.AuthorizationPolicy {
	var out []*mesh.AuthorizationPolicy
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
	slices.SortFunc(out, func(a, b *mesh.AuthorizationPolicy) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return out
}

// forWorkload returns the policies for a workload. Most labels of a catalog instance come from
// its registration, which must not allow what is refused without them: where an ALLOW policy
// selects the instance without those labels, others that select it by them do not count.
func (x *policyIndex) forWorkload(ns string, labels map[string]string) []*mesh.AuthorizationPolicy {
	out := x.selecting(ns, labels)
	if _, instance := labels[mesh.LabelConsulService]; !instance {
		return out
	}
	trusted := x.selecting(ns, trustedLabels(labels))
	if !slices.ContainsFunc(trusted, allows) {
		return out
	}
	return slices.DeleteFunc(out, func(p *mesh.AuthorizationPolicy) bool {
		return allows(p) && !slices.Contains(trusted, p)
	})
}

// allows reports whether a policy allows requests, so that all others are refused.
func allows(p *mesh.AuthorizationPolicy) bool {
	return p.Spec.GetAction() == security.AuthorizationPolicy_ALLOW && !p.DryRun
}

// authorization returns what policies say of the proxy's workload; nil if no policy selects it.
func (pc *proxyContext) authorization() *Authorization {
	policies := pc.policies.forWorkload(pc.namespace(), pc.proxy.Labels)
	if len(policies) == 0 {
		return nil
	}
	out := &Authorization{TrustDomains: pc.trustDomains, JoinsHeaders: joinsHeaders(pc.proxy.EnvoyVersion)}
	for _, p := range policies {
		out.Policies = append(out.Policies, AuthorizationPolicy{
			Namespace: p.Namespace, Name: p.Name, Action: p.Spec.GetAction(), Rules: p.Spec.GetRules(), DryRun: p.DryRun,
		})
		out.origins = append(out.origins, p.Origin)
	}
	return out
}

// joinsHeaders reports whether an Envoy joins several headers of one name before RBAC compares
// them: before 1.36.5, and in 1.37.0 (CVE-2026-26308). An unknown one may.
func joinsHeaders(v Version) bool {
	return v.Major < 1 || v.Major == 1 && (v.Minor < 36 || v.Minor == 36 && v.Patch < 5 || v.Minor == 37 && v.Patch == 0)
}
