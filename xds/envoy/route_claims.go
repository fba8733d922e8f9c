package envoy

import (
	"strings"

	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/xds/authz"
)

// claimHeader begins the name of a header that stands for a claim of the token, in Istio's spelling:
// @request.auth.claims.NAME, or @request.auth.claims[NAME][NAME] for a nested one (pkg/jwt).
const claimHeader = "@request.auth.claims"

// claimsOf are the names of the claim that a header stands for; nil if it is a header.
func claimsOf(header string) []string {
	if len(header) < len(claimHeader) || !strings.EqualFold(header[:len(claimHeader)], claimHeader) {
		return nil
	}
	switch name := header[len(claimHeader):]; {
	case strings.HasPrefix(name, ".") && len(name) > 1:
		return strings.Split(name[1:], ".")
	case strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") && len(name) > 2:
		return strings.Split(name[1:len(name)-1], "][")
	default:
		return nil
	}
}

// claimMatch matches a claim that is a text, or a list of texts. The filter that checks tokens has claims in
// the metadata of requests.
func claimMatch(claims []string, m *networking.StringMatch) *matcherv3.MetadataMatcher {
	out := &matcherv3.MetadataMatcher{Filter: authz.JWTFilter}
	for _, key := range append([]string{authz.JWTPayload}, claims...) {
		out.Path = append(out.Path, &matcherv3.MetadataMatcher_PathSegment{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key}})
	}
	if presence(m) {
		out.Value = &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}}
		return out
	}
	value := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: stringMatch(m)}}
	one := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{
		ListMatch: &matcherv3.ListMatcher{MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: value}},
	}}
	out.Value = &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_OrMatch{OrMatch: &matcherv3.OrMatcher{ValueMatchers: []*matcherv3.ValueMatcher{one, value}}}}
	return out
}
