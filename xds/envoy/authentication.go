package envoy

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/authn"
	"github.com/fairlead/fairlead/xds/view"
)

// maxKeys bounds the key sets of one workload, in bytes: they are in one response, which has
// to fit into what a proxy reads at once. 16 full sets, or hundreds of usual ones.
const maxKeys = 1 << 20

// buildAuthentication makes the filter that checks tokens. Nil has no effect. What is no
// filter for an Envoy refuses every request, as rules that nobody enforces must.
func buildAuthentication(a *view.Authentication, clearRouteCache bool) (*jwtv3.JwtAuthentication, []Diagnostic) {
	if a == nil {
		return &jwtv3.JwtAuthentication{}, nil
	}
	rules := make([]authn.Rule, 0, len(a.Rules))
	size := 0
	for i, r := range a.Rules {
		rules = append(rules, authn.Rule{Spec: r.Spec, Keys: r.Keys, CheckOnly: r.CheckOnly})
		if size += len(r.Keys); size > maxKeys {
			return refuseAll(), unusable(a, i, fmt.Sprintf("the key sets of the workload have more than %d bytes", maxKeys))
		}
		if err := authn.Filter(rules[i:], false).ValidateAll(); err != nil {
			return refuseAll(), unusable(a, i, "Envoy would refuse the rule: "+err.Error())
		}
	}
	return authn.Filter(rules, clearRouteCache), nil
}

func unusable(a *view.Authentication, rule int, why string) []Diagnostic {
	r := a.Rules[rule]
	return []Diagnostic{{
		Key:    mesh.Key{Kind: mesh.KindRequestAuthentication, Namespace: r.Namespace, Name: r.Name},
		Origin: a.Origin(rule), Message: why + "; every request is refused",
	}}
}

// refuseAll wants a token of an issuer without keys. It is not asked about paths without a
// slash, which inbound chains have no route for.
func refuseAll() *jwtv3.JwtAuthentication {
	const nobody = authn.Nobody
	return &jwtv3.JwtAuthentication{
		Providers: map[string]*jwtv3.JwtProvider{nobody: {
			Issuer: nobody, JwksSourceSpecifier: &jwtv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{},
			}},
		}},
		Rules: []*jwtv3.RequirementRule{{
			Match: allPaths(), RequirementType: &jwtv3.RequirementRule_Requires{Requires: &jwtv3.JwtRequirement{
				RequiresType: &jwtv3.JwtRequirement_ProviderName{ProviderName: nobody},
			}},
		}},
	}
}
