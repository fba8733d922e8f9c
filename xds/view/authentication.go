package view

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Authentication is what RequestAuthentications say of the tokens in the requests to one
// workload.
type Authentication struct {
	// Rules are those of all objects that select the workload, in the order in which Istio
	// has them: those of its own namespace before those of the root namespace, older objects
	// first.
	Rules []TokenRule

	origins []*mesh.Origin // of the objects, one for each rule
}

// Origin is where the object of a rule is written.
func (a *Authentication) Origin(rule int) *mesh.Origin { return a.origins[rule] }

// withoutKeys is what objects say of tokens, and not what their issuers do.
func (a *Authentication) withoutKeys() *Authentication {
	if a == nil {
		return nil
	}
	out := &Authentication{Rules: slices.Clone(a.Rules)}
	for i := range out.Rules {
		out.Rules[i].Keys = ""
	}
	return out
}

// TokenRule is one rule of a RequestAuthentication.
type TokenRule struct {
	Namespace, Name string // of the object
	// Spec is without what is only about where keys come from.
	Spec *security.JWTRule
	// Keys is the key set of the issuer. Empty means that there is none: its tokens are
	// refused.
	Keys string
	// CheckOnly says that a good token proves nothing: a bad one is refused, but nobody gets
	// to know what the token says.
	CheckOnly bool
}

// requestAuthentication is an object with its rules as proxies get them.
type requestAuthentication struct {
	*mesh.RequestAuthentication
	rules []TokenRule
}

func newTokenIndex(s *mesh.Snapshot) *policyIndex[*requestAuthentication] {
	root := s.RootNamespace()
	list := make([]*requestAuthentication, 0, len(s.RequestAuthentications))
	for _, r := range s.RequestAuthentications {
		x := &requestAuthentication{RequestAuthentication: r}
		for i, rule := range r.Spec.GetJwtRules() {
			spec := proto.CloneOf(rule)
			spec.Jwks, spec.JwksUri, spec.Timeout = "", "", nil
			token := TokenRule{Namespace: r.Namespace, Name: r.Name, Spec: spec}
			if i < len(r.Keys) {
				token.Keys = r.Keys[i]
			}
			x.rules = append(x.rules, token)
		}
		list = append(list, x)
	}
	return indexPolicies(root, list, func(r *requestAuthentication) *mesh.Meta { return &r.Meta }, func(a, b *requestAuthentication) int {
		switch inRoot := a.Namespace == root; {
		case inRoot != (b.Namespace == root):
			if inRoot {
				return 1
			}
			return -1
		case a.Before(&b.Meta):
			return -1
		case b.Before(&a.Meta):
			return 1
		default:
			return cmp.Compare(a.Namespace, b.Namespace)
		}
	})
}

// authentication returns what is said of tokens for the proxy's workload; nil if nothing is.
//
// Most labels of a catalog instance come from its registration, which must not allow what is
// refused without them. Another issuer, or other keys of one, would: so what is selected by
// those labels only checks tokens where any policy selects the instance without them.
func (pc *proxyContext) authentication() *Authentication {
	ns, labels := pc.namespace(), pc.proxy.Labels
	all := pc.tokens.selecting(ns, labels)
	trusted := all
	if _, instance := labels[mesh.LabelConsulService]; instance && len(all) > 0 {
		own := trustedLabels(labels)
		if chosen := pc.tokens.selecting(ns, own); len(chosen) > 0 || len(pc.policies.selecting(ns, own)) > 0 {
			trusted = chosen
		}
	}
	out := &Authentication{}
	for _, r := range all {
		for _, rule := range r.rules {
			rule.CheckOnly = !slices.Contains(trusted, r)
			out.Rules = append(out.Rules, rule)
			out.origins = append(out.origins, r.Origin)
		}
	}
	if len(out.Rules) == 0 {
		return nil
	}
	return out
}

// issuers are those of the rules, sorted.
func (a *Authentication) issuers() []string {
	var out []string
	for _, r := range a.Rules {
		if issuer := r.Spec.GetIssuer(); issuer != "" {
			out = append(out, issuer)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// addPolicies adds what security policies say of the workload.
func (in *inboundBuilder) addPolicies() {
	pc := in.st
	if in.Authorization, in.providers = pc.authorization(); in.Authorization != nil {
		in.addOrigins(in.Authorization.origins...)
	}
	if in.Authentication = pc.authentication(); in.Authentication != nil {
		in.addOrigins(in.Authentication.origins...)
		if in.Authorization.namesRequestPrincipals() {
			in.Authorization.Issuers = in.Authentication.issuers()
		}
	}
	for _, u := range pc.s.Unenforced {
		if !pc.proxy.AcceptUnenforced && u.Selects(pc.namespace(), pc.proxy.Labels, pc.s.RootNamespace()) {
			in.Deny = true
			in.addOrigins(u.Origin)
			in.denyOrigins = append(in.denyOrigins, u.Origin)
		}
	}
}
