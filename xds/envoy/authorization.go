package envoy

import (
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/authz"
	"github.com/fairlead/fairlead/xds/view"
)

const networkRBACFilter = "envoy.filters.network.rbac"

// policiesOf are the policies of a workload as package authz takes them.
func policiesOf(a *view.Authorization) ([]authz.Policy, authz.Options) {
	policies := make([]authz.Policy, 0, len(a.Policies))
	for _, p := range a.Policies {
		policies = append(policies, authz.Policy{
			Namespace: p.Namespace, Name: p.Name, DryRun: p.DryRun,
			Spec: &security.AuthorizationPolicy{Action: p.Action, Rules: p.Rules},
		})
	}
	return policies, authz.Options{TrustDomains: a.TrustDomains, JoinsHeaders: a.JoinsHeaders}
}

// untranslated says which parts of policies could not be translated, and so deny.
func untranslated(a *view.Authorization, faults []authz.PolicyError) []Diagnostic {
	out := make([]Diagnostic, 0, len(faults))
	for _, f := range faults {
		d := Diagnostic{
			Key:     mesh.Key{Kind: mesh.KindAuthorizationPolicy, Namespace: f.Namespace, Name: f.Name},
			Message: f.Error() + "; what it stands for is denied",
		}
		for i, p := range a.Policies {
			if p.Namespace == f.Namespace && p.Name == f.Name {
				d.Origin = a.Origin(i)
			}
		}
		out = append(out, d)
	}
	return out
}

// tcpAuthorizations translates what policies say of the chains of TCP of one listener, once for
// all that have the same. The zero value is ready.
type tcpAuthorizations struct {
	rules       map[*view.Authorization][]authz.Set
	diagnostics []Diagnostic
}

// of are the rules of a chain, in the order of their filters.
func (x *tcpAuthorizations) of(a *view.Authorization) []authz.Set {
	if a == nil {
		return nil
	}
	if have, ok := x.rules[a]; ok {
		return have
	}
	rules := authz.TCP(policiesOf(a))
	if x.rules == nil {
		x.rules = map[*view.Authorization][]authz.Set{}
	}
	x.rules[a] = rules.InOrder()
	x.diagnostics = append(x.diagnostics, untranslated(a, rules.Faults)...)
	return x.rules[a]
}
