package authz

import (
	"fmt"
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

// maxReadings bounds in how many ways a request principal may be read: each has the text once more.
const maxReadings = 16

var errReadings = fmt.Errorf("the value has more than %d slashes at which an issuer may end", maxReadings)

// issuers are those of a workload.
type issuers struct {
	known   map[string]bool
	lengths map[int]bool // of them
}

func newIssuers(list []string) issuers {
	i := issuers{known: map[string]bool{}, lengths: map[int]bool{}}
	for _, name := range list {
		i.known[name], i.lengths[len(name)] = true, true
	}
	return i
}

// requestPrincipal matches the issuer and the subject of a token. Values are ISSUER/SUBJECT,
// with a star in front or at the end. Both may have slashes: issuers are URLs, and subjects of the
// tokens of CI systems are paths. As in Istio, the last slash is one way to read a value. Each
// issuer of the workload that the value begins with is another.
func (r *rule) requestPrincipal(values []string) (*rbacv3.Principal, error) {
	all := make([]*rbacv3.Principal, 0, len(values))
	for _, v := range values {
		readings, err := r.issuers.read(v)
		if err != nil {
			return nil, err
		}
		for _, one := range readings {
			all = append(all, principals.and([]*rbacv3.Principal{
				claim([]string{"iss"}, text(one.issuer)), claim([]string{"sub"}, text(one.subject)),
			}))
		}
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return principals.or(all), nil
}

// reading is one way to read a request principal.
type reading struct{ issuer, subject *matcherv3.StringMatcher }

// read returns the ways to read a request principal, that of Istio first.
func (i issuers) read(v string) ([]reading, error) {
	issuer, subject := splitPrincipal(v)
	out := []reading{{issuer, subject}}
	end, ends := strings.CutPrefix(v, "*")
	for at := range max(strings.LastIndexByte(v, '/'), 0) {
		switch {
		case v[at] != '/' || len(i.known) == 0:
			continue
		case ends: // any issuer that ends so: only tokens of the workload's come so far
			out = append(out, reading{pattern("*" + end[:at-1]), exact(end[at:])})
		case i.lengths[at] && i.known[v[:at]]:
			out = append(out, reading{exact(v[:at]), subjectAt(v[at+1:])})
		}
		if len(out) > maxReadings {
			return nil, errReadings
		}
	}
	return out, nil
}

// subjectAt is the subject at the end of a value without a star in front.
func subjectAt(v string) *matcherv3.StringMatcher {
	if strings.HasSuffix(v, "*") {
		return patternAtEnd(v)
	}
	return exact(v)
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
