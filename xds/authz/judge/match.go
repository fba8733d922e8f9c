package judge

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	uritemplatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/path/match/uri_template/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// matches evaluates a StringMatcher.
func matches(m *matcherv3.StringMatcher, s string) (bool, error) {
	fold := func(s string) string {
		if m.GetIgnoreCase() {
			return lower(s)
		}
		return s
	}
	s = fold(s)
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return s == fold(p.Exact), nil
	case *matcherv3.StringMatcher_Prefix:
		return strings.HasPrefix(s, fold(p.Prefix)), nil
	case *matcherv3.StringMatcher_Suffix:
		return strings.HasSuffix(s, fold(p.Suffix)), nil
	case *matcherv3.StringMatcher_Contains:
		return strings.Contains(s, fold(p.Contains)), nil
	case *matcherv3.StringMatcher_SafeRegex:
		return fullMatch(p.SafeRegex.GetRegex(), s)
	default:
		return false, fmt.Errorf("string matcher %T: %w", p, ErrUnknown)
	}
}

// fullMatch tells whether the regular expression matches all of s. Envoy's library takes the
// same expressions as Go's. It matches no text that is not UTF-8: nothing in an expression
// stands for a broken character.
func fullMatch(expression, s string) (bool, error) {
	re, err := regexp.Compile(`\A(?:` + expression + `)\z`)
	if err != nil {
		return false, fmt.Errorf("reading a regular expression: %w", err)
	}
	return utf8.ValidString(s) && re.MatchString(s), nil
}

// inRange tells whether an address is in a block. Those of IPv4 and IPv6 are never in one
// another's.
func inRange(r *corev3.CidrRange, a netip.Addr) (bool, error) {
	base, err := netip.ParseAddr(r.GetAddressPrefix())
	if err != nil {
		return false, fmt.Errorf("reading a block of addresses: %w", err)
	}
	p := netip.PrefixFrom(base, int(r.GetPrefixLen().GetValue()))
	if !p.IsValid() {
		return false, fmt.Errorf("the block %v/%d: %w", base, r.GetPrefixLen().GetValue(), ErrUnknown)
	}
	return p.Contains(a), nil
}

// header evaluates a HeaderMatcher. One of several headers of a name is enough.
func (s subject) header(m *routev3.HeaderMatcher) (bool, error) {
	if m.GetInvertMatch() || m.GetTreatMissingHeaderAsEmpty() {
		return false, fmt.Errorf("an inverted header matcher: %w", ErrUnknown)
	}
	values := s.values(lower(m.GetName()))
	switch spec := m.GetHeaderMatchSpecifier().(type) {
	case *routev3.HeaderMatcher_PresentMatch:
		return (len(values) > 0) == spec.PresentMatch, nil
	case *routev3.HeaderMatcher_StringMatch:
		if _, err := matches(spec.StringMatch, ""); err != nil || len(values) == 0 {
			return false, err
		}
		if s.JoinsHeaders {
			values = []string{strings.Join(values, ",")}
		}
		return anyOf(values, func(v string) (bool, error) { return matches(spec.StringMatch, v) })
	default:
		return false, fmt.Errorf("header matcher %T: %w", spec, ErrUnknown)
	}
}

// values are the values of a header; name is in lower case. A connection has none.
func (s subject) values(name string) []string {
	special := map[string]string{":method": s.Method, ":path": s.Path, ":authority": s.Authority, "host": s.Authority}
	if v, ok := special[name]; ok {
		if v == "" {
			return nil
		}
		return []string{v}
	}
	var out []string
	for k, v := range s.Headers {
		if lower(k) == name {
			out = append(out, v...)
		}
	}
	return out
}

// bare is the path without query and fragment.
func (s subject) bare() string {
	if i := strings.IndexAny(s.Path, "?#"); i >= 0 {
		return s.Path[:i]
	}
	return s.Path
}

func (s subject) path(m *matcherv3.PathMatcher) (bool, error) {
	ok, err := matches(m.GetPath(), s.bare())
	return ok && s.Path != "", err
}

// segment are the characters that a star stands for in a template
// (source/extensions/path/uri_template_lib).
const segment = `a-zA-Z0-9\-._~%!$&'()+,;:@=*`

func (s subject) template(c *corev3.TypedExtensionConfig) (bool, error) {
	var m uritemplatev3.UriTemplateMatchConfig
	if err := c.GetTypedConfig().UnmarshalTo(&m); err != nil {
		return false, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	rest, rooted := strings.CutPrefix(m.GetPathTemplate(), "/")
	if !rooted {
		return false, fmt.Errorf("template %q: %w", m.GetPathTemplate(), ErrUnknown)
	}
	parts := strings.Split(rest, "/")
	for i, p := range parts {
		switch {
		case p == "*":
			parts[i] = "[" + segment + "]+"
		case p == "**":
			parts[i] = "[" + segment + "/]*"
		case strings.ContainsAny(p, "*{}"):
			return false, fmt.Errorf("template %q: %w", m.GetPathTemplate(), ErrUnknown)
		default:
			parts[i] = regexp.QuoteMeta(p)
		}
	}
	return fullMatch("/"+strings.Join(parts, "/"), s.bare())
}

// metadata evaluates a matcher of dynamic metadata.
func (s subject) metadata(sourced *rbacv3.SourcedMetadata) (bool, error) {
	if sourced.GetMetadataSource() != rbacv3.MetadataSource_DYNAMIC {
		return false, fmt.Errorf("metadata of %v: %w", sourced.GetMetadataSource(), ErrUnknown)
	}
	m := sourced.GetMetadataMatcher()
	v := structpb.NewStructValue(s.Metadata[m.GetFilter()])
	for _, segment := range m.GetPath() {
		v = v.GetStructValue().GetFields()[segment.GetKey()]
	}
	ok, err := valueMatches(m.GetValue(), v)
	return ok != m.GetInvert(), err
}

func valueMatches(m *matcherv3.ValueMatcher, v *structpb.Value) (bool, error) {
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.ValueMatcher_StringMatch:
		_, is := v.GetKind().(*structpb.Value_StringValue)
		ok, err := matches(p.StringMatch, v.GetStringValue())
		return ok && is, err
	case *matcherv3.ValueMatcher_ListMatch:
		if _, err := valueMatches(p.ListMatch.GetOneOf(), nil); err != nil {
			return false, err
		}
		return anyOf(v.GetListValue().GetValues(), func(v *structpb.Value) (bool, error) {
			return valueMatches(p.ListMatch.GetOneOf(), v)
		})
	case *matcherv3.ValueMatcher_OrMatch:
		return anyOf(p.OrMatch.GetValueMatchers(), func(m *matcherv3.ValueMatcher) (bool, error) { return valueMatches(m, v) })
	default:
		return false, fmt.Errorf("value matcher %T: %w", p, ErrUnknown)
	}
}
