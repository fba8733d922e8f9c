package envoy

import (
	"maps"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"
)

func routeMatch(in *networking.HTTPMatchRequest) *routev3.RouteMatch {
	out := makeAllPaths()
	if in == nil {
		return out
	}
	for _, name := range slices.Sorted(maps.Keys(in.GetHeaders())) {
		if claims := claimsOf(name); claims != nil {
			out.DynamicMetadata = append(out.DynamicMetadata, claimMatch(claims, in.GetHeaders()[name]))
			continue
		}
		out.Headers = append(out.Headers, headerMatch(name, in.GetHeaders()[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(in.GetWithoutHeaders())) {
		if claims := claimsOf(name); claims != nil {
			m := claimMatch(claims, in.GetWithoutHeaders()[name])
			m.Invert = true
			out.DynamicMetadata = append(out.DynamicMetadata, m)
			continue
		}
		m := headerMatch(name, in.GetWithoutHeaders()[name])
		m.InvertMatch = true
		m.TreatMissingHeaderAsEmpty = !presence(in.GetWithoutHeaders()[name])
		out.Headers = append(out.Headers, m)
	}
	slices.SortStableFunc(out.Headers, func(a, b *routev3.HeaderMatcher) int {
		switch {
		case a.GetName() < b.GetName():
			return -1
		case a.GetName() > b.GetName():
			return 1
		default:
			return 0
		}
	})
	switch m := in.GetUri().GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		out.PathSpecifier = &routev3.RouteMatch_Path{Path: m.Exact}
	case *networking.StringMatch_Prefix:
		out.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: m.Prefix}
	case *networking.StringMatch_Regex:
		out.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: m.Regex}}
	}
	if in.GetIgnoreUriCase() {
		out.CaseSensitive = wrapperspb.Bool(false)
	}
	pseudo := func(name string, m *networking.StringMatch) {
		if m != nil {
			out.Headers = append(out.Headers, headerMatch(name, m))
		}
	}
	pseudo(":method", in.GetMethod())
	pseudo(":authority", in.GetAuthority())
	pseudo(":scheme", in.GetScheme())
	for _, name := range slices.Sorted(maps.Keys(in.GetQueryParams())) {
		out.QueryParameters = append(out.QueryParameters, queryMatch(name, in.GetQueryParams()[name]))
	}
	return out
}

// presence reports whether a match only requires that there is a value: an empty match, or
// "*", which is not a regular expression but in use.
func presence(m *networking.StringMatch) bool {
	if m.GetMatchType() == nil {
		return true
	}
	r, ok := m.GetMatchType().(*networking.StringMatch_Regex)
	return ok && r.Regex == "*"
}

func headerMatch(name string, m *networking.StringMatch) *routev3.HeaderMatcher {
	out := &routev3.HeaderMatcher{Name: name}
	if presence(m) {
		out.HeaderMatchSpecifier = &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}
		return out
	}
	out.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: stringMatch(m)}
	return out
}

func queryMatch(name string, m *networking.StringMatch) *routev3.QueryParameterMatcher {
	out := &routev3.QueryParameterMatcher{Name: name}
	if presence(m) {
		out.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_PresentMatch{PresentMatch: true}
		return out
	}
	out.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_StringMatch{StringMatch: stringMatch(m)}
	return out
}

func stringMatch(m *networking.StringMatch) *matcherv3.StringMatcher {
	switch m := m.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: m.Exact}}
	case *networking.StringMatch_Prefix:
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: m.Prefix}}
	case *networking.StringMatch_Regex:
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{
			SafeRegex: &matcherv3.RegexMatcher{Regex: m.Regex},
		}}
	default:
		return nil
	}
}
