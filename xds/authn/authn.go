package authn

import (
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	"google.golang.org/protobuf/types/known/emptypb"
	securityv1 "istio.io/api/security/v1beta1"
)

// payload is where the claims are in the metadata of the filter, for the rules of
// AuthorizationPolicies (Istio's EnvoyJwtFilterPayload).
const payload = "payload"

// Rule is one rule of a RequestAuthentication that selects a workload.
type Rule struct {
	// Spec is the rule; it is not changed. Its jwksUri, jwks and timeout are not used.
	Spec *securityv1.JWTRule
	// Keys is the JSON Web Key Set of its issuer. Empty means that there is none: Envoy answers
	// tokens of the issuer with 401 then. Istio has a key instead of which nobody has the
	// private half. A text without a usable key has Envoy refuse the whole filter, so that
	// also keys that are inline in an object must be what package jwks makes of them.
	Keys string
	// CheckOnly says that a bad token is refused, and that a good one gives no claims to
	// rules, and no headers to the application.
	CheckOnly bool
}

// Filter is the configuration of the filter for all rules of a workload, in the order of their
// objects, or nil without rules. clearRouteCache has Envoy choose the route after the filter,
// which Istio does on gateways.
func Filter(rules []Rule, clearRouteCache bool) *jwtv3.JwtAuthentication {
	if len(rules) == 0 {
		return nil
	}
	// Istio's names of providers count in this order.
	rules = slices.Clone(rules)
	slices.SortStableFunc(rules, func(a, b Rule) int { return strings.Compare(a.Spec.GetIssuer(), b.Spec.GetIssuer()) })
	providers := make(map[string]*jwtv3.JwtProvider, len(rules))
	var either, all []*jwtv3.JwtRequirement
	for i, r := range rules {
		name := "origins-" + strconv.Itoa(i)
		providers[name] = provider(r, clearRouteCache)
		either = append(either, accepted(name))
		all = append(all, anyOf(accepted(name), missing()))
	}
	// Each token must be good, or not there. Rules may look for their tokens in one place:
	// then only one of them accepts it, which is enough.
	requires := all[0]
	if len(all) > 1 {
		requires = anyOf(append(either, allOf(all...))...)
	}
	return &jwtv3.JwtAuthentication{
		Providers: providers,
		Rules: []*jwtv3.RequirementRule{{
			Match:           &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			RequirementType: &jwtv3.RequirementRule_Requires{Requires: requires},
		}},
		BypassCorsPreflight: true,
	}
}

func provider(r Rule, clearRouteCache bool) *jwtv3.JwtProvider {
	spec := r.Spec
	p := &jwtv3.JwtProvider{
		Issuer:                     spec.GetIssuer(),
		Audiences:                  spec.GetAudiences(),
		Forward:                    spec.GetForwardOriginalToken(),
		ForwardPayloadHeader:       spec.GetOutputPayloadToHeader(),
		FromParams:                 spec.GetFromParams(),
		FromCookies:                spec.GetFromCookies(),
		PayloadInMetadata:          payload,
		NormalizePayloadInMetadata: &jwtv3.JwtProvider_NormalizePayload{SpaceDelimitedClaims: spaceDelimited(spec.GetSpaceDelimitedClaims())},
		ClearRouteCache:            clearRouteCache,
		JwksSourceSpecifier: &jwtv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{InlineString: r.Keys},
		}},
	}
	for _, h := range spec.GetFromHeaders() {
		p.FromHeaders = append(p.FromHeaders, &jwtv3.JwtHeader{Name: h.GetName(), ValuePrefix: h.GetPrefix()})
	}
	if r.CheckOnly {
		p.PayloadInMetadata, p.NormalizePayloadInMetadata, p.ForwardPayloadHeader = "", nil, ""
		return p
	}
	for _, h := range spec.GetOutputClaimToHeaders() {
		p.ClaimToHeaders = append(p.ClaimToHeaders, &jwtv3.JwtClaimToHeader{HeaderName: h.GetHeader(), ClaimName: h.GetClaim()})
	}
	return p
}

// spaceDelimited are the claims of which each word counts as a value: scope and permission
// always.
func spaceDelimited(claims []string) []string {
	list := append([]string{"permission", "scope"}, claims...)
	slices.Sort(list)
	return slices.Compact(list)
}

func accepted(name string) *jwtv3.JwtRequirement {
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_ProviderName{ProviderName: name}}
}

func missing() *jwtv3.JwtRequirement {
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_AllowMissing{AllowMissing: &emptypb.Empty{}}}
}

func anyOf(list ...*jwtv3.JwtRequirement) *jwtv3.JwtRequirement {
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAny{RequiresAny: &jwtv3.JwtRequirementOrList{Requirements: list}}}
}

func allOf(list ...*jwtv3.JwtRequirement) *jwtv3.JwtRequirement {
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAll{RequiresAll: &jwtv3.JwtRequirementAndList{Requirements: list}}}
}
