package authz

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// scheme is what every SPIFFE ID begins with. Policies write principals without it.
const scheme = "spiffe://"

// maxRegex bounds a regular expression, in bytes. Envoy refuses those whose program is
// larger than a limit, with all the rest of the configuration that they stand in. The limit
// in our bootstrap is 32768; no byte of ours makes a program of more than 16. A SPIFFE ID
// has at most 2048 bytes.
const maxRegex = 2048

var errLong = fmt.Errorf("the value is too long: at most %d bytes are matched", maxRegex)

// exact, prefix and suffix match as Envoy's StringMatcher does.
func exact(v string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: v}}
}

func prefix(v string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: v}}
}

func suffix(v string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: v}}
}

func contains(v string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Contains{Contains: v}}
}

func regex(v string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: v}}}
}

// notEmpty matches every text but the empty one.
func notEmpty() *matcherv3.StringMatcher { return regex(".+") }

// pattern matches as the values of policies do: "*" is presence, "*x" a suffix, "x*" a
// prefix, and all else exact.
func pattern(v string) *matcherv3.StringMatcher {
	switch {
	case v == "*":
		return notEmpty()
	case strings.HasPrefix(v, "*"):
		return suffix(v[1:])
	case strings.HasSuffix(v, "*"):
		return prefix(v[:len(v)-1])
	default:
		return exact(v)
	}
}

// header matches a header with a value of a policy. One of several headers of a name is
// enough.
func header(name, v string, ignoreCase bool) *routev3.HeaderMatcher {
	if v == "*" {
		return &routev3.HeaderMatcher{
			Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
		}
	}
	m := pattern(v)
	m.IgnoreCase = ignoreCase
	return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: m}}
}

// cidr is an address or a block of addresses.
func cidr(v string) (*corev3.CidrRange, error) {
	p, err := netip.ParsePrefix(v)
	if err != nil {
		a, notAddress := netip.ParseAddr(v)
		if notAddress != nil || a.Zone() != "" {
			return nil, fmt.Errorf("%q is neither an IP address nor a CIDR block", v)
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	return &corev3.CidrRange{AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits()))}, nil
}

func hostPermission(v string) (*rbacv3.Permission, error) {
	return headerPermission(header(":authority", v, true)), nil
}

func methodPermission(v string) (*rbacv3.Permission, error) {
	return headerPermission(header(":method", v, false)), nil
}

func headerPermission(m *routev3.HeaderMatcher) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: m}}
}

// pathPermission matches the path without its query.
func pathPermission(v string) (*rbacv3.Permission, error) {
	if isTemplate(v) {
		return templatePermission(v)
	}
	m := &matcherv3.PathMatcher{Rule: &matcherv3.PathMatcher_Path{Path: pattern(v)}}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_UrlPath{UrlPath: m}}, nil
}

func portPermission(v string) (*rbacv3.Permission, error) {
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%q is not a port number", v)
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationPort{DestinationPort: uint32(n)}}, nil
}

func destinationIPPermission(v string) (*rbacv3.Permission, error) {
	r, err := cidr(v)
	return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationIp{DestinationIp: r}}, err
}

func sniPermission(v string) (*rbacv3.Permission, error) {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_RequestedServerName{RequestedServerName: pattern(v)}}, nil
}

func sourceIPPrincipal(v string) (*rbacv3.Principal, error) {
	r, err := cidr(v)
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_DirectRemoteIp{DirectRemoteIp: r}}, err
}

func remoteIPPrincipal(v string) (*rbacv3.Principal, error) {
	r, err := cidr(v)
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_RemoteIp{RemoteIp: r}}, err
}

// authenticated matches the names in the peer's certificate. Without mutual TLS there are
// none, and it does not match.
func authenticated(m *matcherv3.StringMatcher) (*rbacv3.Principal, error) {
	if len(m.GetSafeRegex().GetRegex()) > maxRegex {
		return nil, errLong
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{
		Authenticated: &rbacv3.Principal_Authenticated{PrincipalName: m},
	}}, nil
}

func peerPrincipal(v string) (*rbacv3.Principal, error) {
	switch {
	case v == "*":
		return authenticated(notEmpty())
	case strings.HasPrefix(v, "*"):
		return authenticated(regex(scheme + ".*" + regexp.QuoteMeta(v[1:])))
	case strings.HasSuffix(v, "*"):
		return authenticated(prefix(scheme + v[:len(v)-1]))
	default:
		return authenticated(exact(scheme + v))
	}
}

// namespacePrincipal matches the namespace in a SPIFFE ID. Stars stand for any text,
// wherever they are.
func namespacePrincipal(v string) (*rbacv3.Principal, error) {
	if !strings.Contains(v, "*") {
		return authenticated(contains("/ns/" + v + "/"))
	}
	parts := strings.Split(v, "*")
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(p)
	}
	return authenticated(regex(".*/ns/" + strings.Join(parts, ".*") + "/.*"))
}

// serviceAccountPrincipal matches an account. A SPIFFE ID may say more between the
// namespace and the account, and behind it.
func serviceAccountPrincipal(namespace, v string) (*rbacv3.Principal, error) {
	account := v
	if ns, sa, ok := strings.Cut(v, "/"); ok {
		namespace, account = ns, sa
	}
	return authenticated(regex(scheme + ".+/ns/" + regexp.QuoteMeta(namespace) + "/(.+/|)sa/" + regexp.QuoteMeta(account) + "(/.+)?"))
}

func trustDomainPrincipal(v string) (*rbacv3.Principal, error) {
	before, after, star := strings.Cut(v, "*")
	switch {
	case v == "*":
		return authenticated(prefix(scheme))
	case !star:
		return authenticated(prefix(scheme + v + "/"))
	default:
		return authenticated(regex(scheme + regexp.QuoteMeta(before) + "[^/]*" + regexp.QuoteMeta(after) + "/.*"))
	}
}

// headerPrincipal matches the header that is named in brackets. joined matches also where
// Envoy sees several headers of that name as one, with commas between them.
func headerPrincipal(bracket string, joined bool) func([]string) (*rbacv3.Principal, error) {
	return func(values []string) (*rbacv3.Principal, error) {
		name, err := bracketed(bracket)
		if err != nil {
			return nil, err
		}
		var all []*rbacv3.Principal
		add := func(m *routev3.HeaderMatcher) {
			all = append(all, &rbacv3.Principal{Identifier: &rbacv3.Principal_Header{Header: m}})
		}
		for _, v := range values {
			add(header(name, v, false))
			if joined && v != "*" {
				for _, m := range amongJoined(pattern(v)) {
					add(&routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: m}})
				}
			}
		}
		return principals.or(all), nil
	}
}

// amongJoined matches what m does, where it is one of several texts with commas between them.
func amongJoined(m *matcherv3.StringMatcher) []*matcherv3.StringMatcher {
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Prefix:
		return []*matcherv3.StringMatcher{contains("," + p.Prefix)}
	case *matcherv3.StringMatcher_Suffix:
		return []*matcherv3.StringMatcher{contains(p.Suffix + ",")}
	default:
		v := m.GetExact()
		return []*matcherv3.StringMatcher{prefix(v + ","), contains("," + v + ","), suffix("," + v)}
	}
}

var errKey = errors.New("the key is not experimental.envoy.filters.FILTER[NAME]")

// metadataPermission matches dynamic metadata: key is experimental.FILTER[NAME]. A value in
// brackets is one of a list.
func metadataPermission(key string) func([]string) (*rbacv3.Permission, error) {
	filter, name, _ := strings.Cut(strings.TrimPrefix(key, "experimental."), "[")
	name = strings.TrimSuffix(name, "]")
	return func(values []string) (*rbacv3.Permission, error) {
		if name == "" || !strings.HasSuffix(key, "]") {
			return nil, errKey
		}
		all := make([]*matcherv3.ValueMatcher, 0, len(values))
		for _, v := range values {
			if strings.HasPrefix(v, "[") && strings.HasSuffix(v, "]") {
				all = append(all, oneOf(text(pattern(strings.Trim(v, "[]")))))
			} else {
				all = append(all, text(pattern(v)))
			}
		}
		return &rbacv3.Permission{Rule: &rbacv3.Permission_SourcedMetadata{
			SourcedMetadata: metadata(filter, []string{name}, anyOf(all)),
		}}, nil
	}
}
