package judge

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// ErrUnknown is the error for configuration that this package cannot evaluate.
var ErrUnknown = errors.New("this form of RBAC cannot be evaluated")

// Request is a request, or a connection to a TCP port, as Envoy's filters see it: after
// paths are normalized, and with the headers that Envoy itself adds, where rules ask for
// them.
type Request struct {
	// Method, Path (with its query) and Authority are those of a request. They are empty
	// for a connection.
	Method, Path, Authority string
	// Headers are the other headers. The case of names does not count.
	Headers map[string][]string
	// JoinsHeaders is for Envoys before 1.36.5, and for 1.37.0: they join several headers of
	// one name with commas before they compare them. Later ones compare each.
	JoinsHeaders bool
	// Source is the address that the packets come from. Remote is the client's: it may be
	// known from x-forwarded-for or the PROXY protocol. If it is invalid, it is Source.
	Source, Remote netip.Addr
	// Destination is the address and port that the client connected to.
	Destination netip.AddrPort
	// SNI is the server name of TLS, in any case; empty without TLS.
	SNI string
	// Peer is nil without TLS.
	Peer *Peer
	// Metadata is Envoy's dynamic metadata by filter. The claims of a token are a struct in
	// that of the filter for tokens.
	Metadata map[string]*structpb.Struct
}

// Peer is the certificate that the other side of TLS showed, if any.
type Peer struct {
	// URIs and DNSNames are its subject alternative names, Subject its subject.
	URIs, DNSNames []string
	Subject        string
}

// Verdict is what the rules say of a request.
type Verdict struct {
	// Allowed is the answer.
	Allowed bool
	// Action is the action of the rules that decided: those that denied, or else the last.
	Action rbacv3.RBAC_Action
	// Policy is the name of the policy that matched there. It is empty if none did.
	Policy string
}

// Decide asks the rules of filters, in their order, until one denies. Rules that are nil
// allow, as Envoy's filter without rules does.
func Decide(chain []*rbacv3.RBAC, r Request) (Verdict, error) {
	v := Verdict{Allowed: true}
	for _, rules := range chain {
		if rules == nil {
			continue
		}
		one, err := Evaluate(rules, r)
		if err != nil {
			return Verdict{}, err
		}
		if one.Action == rbacv3.RBAC_LOG {
			continue
		}
		if v = one; !v.Allowed {
			break
		}
	}
	return v, nil
}

// Evaluate asks the rules of one filter. Envoy asks policies in the order of their names, and
// takes the first that matches (source/extensions/filters/common/rbac/engine_impl.cc).
func Evaluate(rules *rbacv3.RBAC, r Request) (Verdict, error) {
	v := Verdict{Action: rules.GetAction()}
	s := subject{Request: r}
	matched := false
	for _, name := range slices.Sorted(maps.Keys(rules.GetPolicies())) {
		ok, err := s.policy(rules.GetPolicies()[name])
		if err != nil {
			return Verdict{}, fmt.Errorf("evaluating %q: %w", name, err)
		}
		if ok && !matched {
			matched, v.Policy = true, name
		}
	}
	switch v.Action {
	case rbacv3.RBAC_ALLOW:
		v.Allowed = matched
	case rbacv3.RBAC_DENY:
		v.Allowed = !matched
	case rbacv3.RBAC_LOG:
		v.Allowed = true
	default:
		return Verdict{}, fmt.Errorf("action %v: %w", v.Action, ErrUnknown)
	}
	return v, nil
}

// subject is the request that is judged.
type subject struct{ Request }

func (s subject) policy(p *rbacv3.Policy) (bool, error) {
	if p.GetCondition() != nil || p.GetCheckedCondition() != nil || p.GetCelConfig() != nil {
		return false, fmt.Errorf("a condition in CEL: %w", ErrUnknown)
	}
	may, err := anyOf(p.GetPermissions(), s.permission)
	if err != nil {
		return false, err
	}
	is, err := anyOf(p.GetPrincipals(), s.principal)
	return may && is, err
}

func (s subject) permission(p *rbacv3.Permission) (bool, error) {
	switch rule := p.GetRule().(type) {
	case *rbacv3.Permission_AndRules:
		return allOf(rule.AndRules.GetRules(), s.permission)
	case *rbacv3.Permission_OrRules:
		return anyOf(rule.OrRules.GetRules(), s.permission)
	case *rbacv3.Permission_NotRule:
		return not(s.permission(rule.NotRule))
	case *rbacv3.Permission_Any:
		return rule.Any, nil
	case *rbacv3.Permission_Header:
		return s.header(rule.Header)
	case *rbacv3.Permission_UrlPath:
		return s.path(rule.UrlPath)
	case *rbacv3.Permission_UriTemplate:
		return s.template(rule.UriTemplate)
	case *rbacv3.Permission_DestinationIp:
		return inRange(rule.DestinationIp, s.Destination.Addr())
	case *rbacv3.Permission_DestinationPort:
		return rule.DestinationPort == uint32(s.Destination.Port()), nil
	case *rbacv3.Permission_RequestedServerName:
		return matches(rule.RequestedServerName, lower(s.SNI))
	case *rbacv3.Permission_SourcedMetadata:
		return s.metadata(rule.SourcedMetadata)
	default:
		return false, fmt.Errorf("permission %T: %w", rule, ErrUnknown)
	}
}

func (s subject) principal(p *rbacv3.Principal) (bool, error) {
	switch id := p.GetIdentifier().(type) {
	case *rbacv3.Principal_AndIds:
		return allOf(id.AndIds.GetIds(), s.principal)
	case *rbacv3.Principal_OrIds:
		return anyOf(id.OrIds.GetIds(), s.principal)
	case *rbacv3.Principal_NotId:
		return not(s.principal(id.NotId))
	case *rbacv3.Principal_Any:
		return id.Any, nil
	case *rbacv3.Principal_Authenticated_:
		return s.authenticated(id.Authenticated)
	case *rbacv3.Principal_DirectRemoteIp:
		return inRange(id.DirectRemoteIp, s.Source)
	case *rbacv3.Principal_RemoteIp:
		if !s.Remote.IsValid() {
			return inRange(id.RemoteIp, s.Source)
		}
		return inRange(id.RemoteIp, s.Remote)
	case *rbacv3.Principal_Header:
		return s.header(id.Header)
	case *rbacv3.Principal_SourcedMetadata:
		return s.metadata(id.SourcedMetadata)
	default:
		return false, fmt.Errorf("principal %T: %w", id, ErrUnknown)
	}
}

// authenticated compares the names in the peer's certificate, its subject last.
func (s subject) authenticated(a *rbacv3.Principal_Authenticated) (bool, error) {
	if s.Peer == nil {
		_, err := matches(a.GetPrincipalName(), "")
		return false, err
	}
	names := slices.Concat(s.Peer.URIs, s.Peer.DNSNames, []string{s.Peer.Subject})
	return anyOf(names, func(name string) (bool, error) { return matches(a.GetPrincipalName(), name) })
}

// allOf and anyOf look at each member, also where the answer is known: a form that is
// unknown must not depend on the request.
func allOf[T any](list []T, ask func(T) (bool, error)) (bool, error) {
	all := true
	for _, one := range list {
		ok, err := ask(one)
		if err != nil {
			return false, err
		}
		all = all && ok
	}
	return all, nil
}

func anyOf[T any](list []T, ask func(T) (bool, error)) (bool, error) {
	found := false
	for _, one := range list {
		ok, err := ask(one)
		if err != nil {
			return false, err
		}
		found = found || ok
	}
	return found, nil
}

func not(ok bool, err error) (bool, error) { return !ok && err == nil, err }

// lower changes ASCII letters only, as Envoy does.
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}
