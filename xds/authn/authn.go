package authn

import (
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/emptypb"
	securityv1 "istio.io/api/security/v1beta1"
)

// payload is where the claims are in the metadata of the filter, for the rules of
// AuthorizationPolicies (Istio's EnvoyJwtFilterPayload).
const payload = "payload"

const (
	// OutputHeaders is the name of a provider, and of its issuer, that no token is of. It stands
	// for the headers that rules write for the application.
	OutputHeaders = "fairlead-output-headers"
	// Nowhere is the header in which that provider looks for tokens. Nobody sends it: one with
	// it is answered with 401.
	Nowhere = "x-fairlead-nowhere"
	// Nobody is the name of the only provider of a filter that refuses every request.
	Nobody = "nobody"
)

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
	required := false
	for i, r := range rules {
		name := "origins-" + strconv.Itoa(i)
		providers[name] = provider(r, clearRouteCache)
		either = append(either, accepted(name))
		if r.Spec.GetPresence() == securityv1.JWTRule_REQUIRED {
			required = true
			all = append(all, accepted(name))
		} else {
			all = append(all, anyOf(accepted(name), missing()))
		}
	}
	// Each token must be good, or not there. Rules may look for their tokens in one place:
	// then only one of them accepts it, which is enough, unless a token is required: another
	// one does not replace it.
	requires := all[0]
	switch {
	case len(all) > 1 && required:
		requires = allOf(all...)
	case len(all) > 1:
		requires = anyOf(append(either, allOf(all...))...)
	}
	f := &jwtv3.JwtAuthentication{Providers: providers, BypassCorsPreflight: true}
	if headers := outputHeaders(rules); len(headers) > 0 {
		removed := removeFirst(f, headers)
		requires = allOf(removed, requires)
	}
	f.Rules = append(f.Rules, ruleFor(requires))
	return f
}

// outputHeaders are the headers that the rules write, in lower case. Those of rules that only
// check are among them: they write none, but what stands in such a header must not come from a
// client either.
func outputHeaders(rules []Rule) []string {
	var out []string
	for _, r := range rules {
		if h := r.Spec.GetOutputPayloadToHeader(); h != "" {
			out = append(out, strings.ToLower(h))
		}
		for _, h := range r.Spec.GetOutputClaimToHeaders() {
			out = append(out, strings.ToLower(h.GetHeader()))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// removeFirst returns a requirement that every request meets, and that removes a client's own
// headers of these names. The filter gets what it needs for that.
//
// Envoy removes the headers that a provider writes when it asks the provider (extractor.cc and
// verifier.cc of the filter). Before 1.40 it asks none behind the first that accepts a token, and
// none about a CORS preflight request, so that the client's values would pass to an application
// that trusts them. So a provider that accepts nothing, and finds no token, is asked first. It
// writes no header; that it could has Envoy remove them, those with the payload, too.
//
// Tokens that a rule looks for in such a header are removed with it.
func removeFirst(f *jwtv3.JwtAuthentication, headers []string) *jwtv3.JwtRequirement {
	p := &jwtv3.JwtProvider{
		Issuer:      OutputHeaders,
		FromHeaders: []*jwtv3.JwtHeader{{Name: Nowhere}},
		JwksSourceSpecifier: &jwtv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{},
		}},
	}
	for _, h := range headers {
		p.ClaimToHeaders = append(p.ClaimToHeaders, &jwtv3.JwtClaimToHeader{HeaderName: h, ClaimName: "none"})
	}
	f.Providers[OutputHeaders] = p
	removed := anyOf(accepted(OutputHeaders), missing())

	// In place of the filter's own exception for preflight requests, which removes nothing: the
	// same requests, whose tokens nobody looks at.
	f.BypassCorsPreflight = false
	preflight := ruleFor(removed)
	preflight.Match.Headers = []*routev3.HeaderMatcher{
		header(":method", &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: "OPTIONS"}}),
		header("access-control-request-method", notEmpty()),
		header("origin", notEmpty()),
	}
	f.Rules = append(f.Rules, preflight)
	return removed
}

// ruleFor has all requests meet a requirement.
func ruleFor(requires *jwtv3.JwtRequirement) *jwtv3.RequirementRule {
	return &jwtv3.RequirementRule{
		Match:           &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		RequirementType: &jwtv3.RequirementRule_Requires{Requires: requires},
	}
}

func header(name string, value *matcherv3.StringMatcher) *routev3.HeaderMatcher {
	return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: value}}
}

func notEmpty() *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: ".+"}}}
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
