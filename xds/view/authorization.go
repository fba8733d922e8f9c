package view

import (
	"slices"

	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Authorization is what AuthorizationPolicies say of one workload. All its inbound filter
// chains have the same.
type Authorization struct {
	// TrustDomains are the mesh's own, and then its aliases: a principal of one of them is
	// meant in all of them.
	TrustDomains []string
	// Issuers are those whose tokens the workload accepts, sorted, if a policy names request principals.
	Issuers []string
	// JoinsHeaders says that the Envoy joins several headers of one name before it compares
	// them.
	JoinsHeaders bool
	// Policies are all that select the workload, by namespace and name.
	Policies []AuthorizationPolicy
	// Providers are those that the policies with action CUSTOM name, by name.
	Providers []Provider

	origins []*mesh.Origin // of the policies, in their order
}

// Origin is where a policy is written, by its place in Policies.
func (a *Authorization) Origin(policy int) *mesh.Origin { return a.origins[policy] }

// AuthorizationPolicy is one policy that selects a workload.
type AuthorizationPolicy struct {
	Namespace, Name string
	Action          security.AuthorizationPolicy_Action
	Rules           []*security.Rule
	// Provider is the extension provider that a policy with action CUSTOM asks.
	Provider string
	// DryRun policies decide nothing. Envoy counts what they would have decided.
	DryRun bool
}

// newPolicyIndex finds AuthorizationPolicies, by namespace and name.
func newPolicyIndex(s *mesh.Snapshot) *policyIndex[*mesh.AuthorizationPolicy] {
	return indexPolicies(s.RootNamespace(), s.AuthorizationPolicies, func(p *mesh.AuthorizationPolicy) *mesh.Meta { return &p.Meta },
		func(a, b *mesh.AuthorizationPolicy) int { return a.Compare(b.Key) })
}

// namespacesAsking are those that have policies with action CUSTOM.
func namespacesAsking(s *mesh.Snapshot) map[string]bool {
	out := map[string]bool{}
	for _, p := range s.AuthorizationPolicies {
		if p.Spec.GetAction() == security.AuthorizationPolicy_CUSTOM {
			out[p.Namespace] = true
		}
	}
	return out
}

// authorizing are the policies for a workload. Most labels of a catalog instance come from
// its registration, which must not allow what is refused without them: where an ALLOW policy
// selects the instance without those labels, others that select it by them do not count.
func authorizing(x *policyIndex[*mesh.AuthorizationPolicy], ns string, labels map[string]string) []*mesh.AuthorizationPolicy {
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

// authorization returns what policies say of the proxy's workload, nil if no policy selects it, and
// the clusters and endpoints of the extension providers that they ask.
func (pc *proxyContext) authorization() (*Authorization, []Part) {
	policies := authorizing(pc.policies, pc.namespace(), pc.proxy.Labels)
	if len(policies) == 0 {
		return nil, nil
	}
	out := &Authorization{TrustDomains: pc.trustDomains, JoinsHeaders: joinsHeaders(pc.proxy.EnvoyVersion)}
	for _, p := range policies {
		out.Policies = append(out.Policies, AuthorizationPolicy{
			Namespace: p.Namespace, Name: p.Name, Action: p.Spec.GetAction(), Rules: p.Spec.GetRules(), DryRun: p.DryRun,
			Provider: p.Spec.GetProvider().GetName(),
		})
		out.origins = append(out.origins, p.Origin)
	}
	var parts []Part
	out.Providers, parts = pc.providersOf(out.Policies)
	return out, parts
}

// namesRequestPrincipals reports whether a rule compares issuer and subject of a token with text.
func (a *Authorization) namesRequestPrincipals() bool {
	return a != nil && slices.ContainsFunc(a.Policies, func(p AuthorizationPolicy) bool {
		return slices.ContainsFunc(p.Rules, func(r *security.Rule) bool {
			return slices.ContainsFunc(r.GetFrom(), func(f *security.Rule_From) bool {
				return len(f.GetSource().GetRequestPrincipals())+len(f.GetSource().GetNotRequestPrincipals()) > 0
			}) || slices.ContainsFunc(r.GetWhen(), func(c *security.Condition) bool { return c.GetKey() == "request.auth.principal" })
		})
	})
}

// joinsHeaders reports whether an Envoy joins several headers of one name before RBAC compares
// them: before 1.36.5, and in 1.37.0 (CVE-2026-26308). An unknown one may.
func joinsHeaders(v Version) bool {
	return v.Major < 1 || v.Major == 1 && (v.Minor < 36 || v.Minor == 36 && v.Patch < 5 || v.Minor == 37 && v.Patch == 0)
}
