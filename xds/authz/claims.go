package authz

import (
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

const (
	// JWTFilter is the name of the filter under which Envoy keeps the claims of a token. It
	// is Istio's (pilot/pkg/xds/filters).
	JWTFilter = "envoy.filters.http.jwt_authn"
	// JWTPayload is the key of the claims there: the field payload_in_metadata of the
	// filter's provider.
	JWTPayload = "payload"
)

// requestPrincipal matches the issuer and the subject of a token. Values are ISSUER/SUBJECT,
// with a star in front or at the end. Both may have slashes: issuers are URLs, and subjects of the
// tokens of CI systems are paths. As in Istio, the last slash is one way to read a value. Each
// issuer of the workload that the value begins with is another.
func (r *rule) requestPrincipal(values []string) (*rbacv3.Principal, error) {
	all := make([]*rbacv3.Principal, 0, len(values))
	add := func(issuer, subject *matcherv3.StringMatcher) {
		all = append(all, principals.and([]*rbacv3.Principal{
			claim([]string{"iss"}, text(issuer)), claim([]string{"sub"}, text(subject)),
		}))
	}
	for _, v := range values {
		add(splitPrincipal(v))
		for _, issuer := range r.options.Issuers {
			for _, subject := range subjectsOf(v, issuer) {
				add(exact(issuer), subject)
			}
		}
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return principals.or(all), nil
}

// subjectsOf are the subjects with slashes that a value has where it is of an issuer: one at most, or
// several if it begins with a star and may end the issuer at several slashes.
func subjectsOf(value, issuer string) []*matcherv3.StringMatcher {
	last := strings.LastIndex(value, "/")
	if end, ends := strings.CutPrefix(value, "*"); ends {
		var out []*matcherv3.StringMatcher
		for at := range max(last-1, 0) {
			if end[at] == '/' && strings.HasSuffix(issuer+"/", end[:at+1]) {
				out = append(out, exact(end[at+1:]))
			}
		}
		return out
	}
	subject, of := strings.CutPrefix(value, issuer+"/")
	switch {
	case !of || len(issuer) >= last:
		return nil
	case strings.HasSuffix(subject, "*"):
		return []*matcherv3.StringMatcher{patternAtEnd(subject)}
	default:
		return []*matcherv3.StringMatcher{exact(subject)}
	}
}

func splitPrincipal(v string) (issuer, subject *matcherv3.StringMatcher) {
	slash := strings.LastIndex(v, "/")
	if slash < 0 {
		switch {
		case v == "*":
			return notEmpty(), notEmpty()
		case strings.HasPrefix(v, "*"):
			return notEmpty(), suffix(v[1:])
		case strings.HasSuffix(v, "*"):
			return prefix(v[:len(v)-1]), notEmpty()
		default:
			return exact(v), exact("")
		}
	}
	iss, sub := v[:slash], v[slash+1:]
	switch {
	case strings.HasPrefix(v, "*"):
		return pattern(iss), exact(sub)
	case strings.HasSuffix(v, "*"):
		return exact(iss), patternAtEnd(sub)
	default:
		return exact(iss), exact(sub)
	}
}

// patternAtEnd is pattern for a text that ends with a star: a star in front is no wildcard.
func patternAtEnd(v string) *matcherv3.StringMatcher {
	if v == "*" {
		return notEmpty()
	}
	return prefix(v[:len(v)-1])
}

// claimPrincipal matches a claim that is a text or a list of texts.
func claimPrincipal(names ...string) func([]string) (*rbacv3.Principal, error) {
	return func(values []string) (*rbacv3.Principal, error) {
		all := make([]*matcherv3.ValueMatcher, 0, len(values))
		for _, v := range values {
			all = append(all, text(pattern(v)))
		}
		value := anyOf(all)
		return claim(names, anyOf([]*matcherv3.ValueMatcher{oneOf(value), value})), nil
	}
}

// nestedClaimPrincipal matches the claim that is named in brackets.
func nestedClaimPrincipal(brackets string) func([]string) (*rbacv3.Principal, error) {
	return func(values []string) (*rbacv3.Principal, error) {
		names, err := nested(brackets)
		if err != nil {
			return nil, err
		}
		return claimPrincipal(names...)(values)
	}
}

func claim(names []string, value *matcherv3.ValueMatcher) *rbacv3.Principal {
	path := append([]string{JWTPayload}, names...)
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_SourcedMetadata{SourcedMetadata: metadata(JWTFilter, path, value)}}
}

// metadata matches dynamic metadata. Istio has it in the field "metadata" of permissions and
// principals; Envoy warns of it at each use since 1.36, because it will be removed.
func metadata(filter string, path []string, value *matcherv3.ValueMatcher) *rbacv3.SourcedMetadata {
	out := &matcherv3.MetadataMatcher{Filter: filter, Value: value}
	for _, key := range path {
		out.Path = append(out.Path, &matcherv3.MetadataMatcher_PathSegment{
			Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key},
		})
	}
	return &rbacv3.SourcedMetadata{MetadataMatcher: out}
}

func text(m *matcherv3.StringMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: m}}
}

func oneOf(m *matcherv3.ValueMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{
		ListMatch: &matcherv3.ListMatcher{MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: m}},
	}}
}

func anyOf(all []*matcherv3.ValueMatcher) *matcherv3.ValueMatcher {
	if len(all) == 1 {
		return all[0]
	}
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_OrMatch{OrMatch: &matcherv3.OrMatcher{ValueMatchers: all}}}
}
