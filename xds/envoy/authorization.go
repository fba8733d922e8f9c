package envoy

import (
	"errors"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networkextauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
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
			Spec: specOf(&p),
		})
	}
	return policies, authz.Options{TrustDomains: a.TrustDomains, Issuers: a.Issuers, JoinsHeaders: a.JoinsHeaders, Providers: map[string]error{}}
}

func specOf(p *view.AuthorizationPolicy) *security.AuthorizationPolicy {
	out := &security.AuthorizationPolicy{Action: p.Action, Rules: p.Rules}
	if p.Provider != "" {
		out.ActionDetail = &security.AuthorizationPolicy_Provider{Provider: &security.AuthorizationPolicy_ExtensionProvider{Name: p.Provider}}
	}
	return out
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
	filters     map[*view.Authorization][]*listenerv3.Filter
	diagnostics []Diagnostic
}

// of are the filters of a chain, in their order.
func (x *tcpAuthorizations) of(a *view.Authorization) []*listenerv3.Filter {
	if a == nil {
		return nil
	}
	if have, ok := x.filters[a]; ok {
		return have
	}
	policies, options := policiesOf(a)
	ask := map[string]*networkextauthzv3.ExtAuthz{}
	for i := range a.Providers {
		ask[a.Providers[i].Name], options.Providers[a.Providers[i].Name] = tcpProvider(&a.Providers[i])
	}
	rules := authz.TCP(policies, options)
	var out []*listenerv3.Filter
	for _, c := range rules.Custom {
		if filter := ask[c.Provider]; filter != nil && c.Denied == nil {
			out = append(out, networkFilter(networkRBACFilter, c.NetworkFilter()), networkFilter(networkExtAuthzFilter, filter))
		}
	}
	for _, set := range rules.InOrder() { // where a provider cannot be asked, its rules deny
		out = append(out, networkFilter(networkRBACFilter, set.NetworkFilter()))
	}
	if x.filters == nil {
		x.filters = map[*view.Authorization][]*listenerv3.Filter{}
	}
	x.filters[a] = out
	x.diagnostics = append(x.diagnostics, untranslated(a, rules.Faults)...)
	return out
}

var errHTTPProvider = errors.New("an envoyExtAuthzHttp cannot be asked about connections of TCP ports; use an envoyExtAuthzGrpc, or name the ports of HTTP in operation.ports")

// tcpProvider makes the filter that asks a provider. An error says why it cannot be asked. Istio
// lets what an HTTP provider cannot be asked about pass.
func tcpProvider(p *view.Provider) (*networkextauthzv3.ExtAuthz, error) {
	switch {
	case p.Fault != "":
		return nil, errors.New(p.Fault)
	case p.GRPC == nil:
		return nil, errHTTPProvider
	default:
		out := networkExtAuthz(p)
		return out, out.ValidateAll()
	}
}
