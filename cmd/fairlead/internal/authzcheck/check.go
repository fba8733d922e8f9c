package authzcheck

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/xds/authz"
	"github.com/fairlead/fairlead/xds/authz/judge"
)

// Configuration is what a proxy runs.
type Configuration struct {
	Listeners []*listenerv3.Listener
	// Extensions are filters that travel by ECDS, by name.
	Extensions map[string]*anypb.Any
}

// Question is a request, or without Method a connection of TCP.
type Question struct {
	// Port is where the request arrives; 0 is the only port there is.
	Port uint32
	// From is the identity of the client, such as spiffe://cluster.local/ns/shop/sa/web;
	// without one, the connection has no mTLS.
	From string
	// Address is the address of the client; the zero value is one that no rule names.
	Address netip.Addr
	// Method, Path and Authority are those of an HTTP request.
	Method, Path, Authority string
	Headers                 map[string][]string
	// Claims are those of a token that the request has besides what is in Headers and Path,
	// where the rules look for it; nil if it has none. Tokens are taken to be well signed and in
	// time.
	Claims *structpb.Struct
	// Offline says that the configuration is not a running proxy's, and lacks the keys that a
	// server fetches.
	Offline bool
}

// Answer is what the proxy does.
type Answer struct {
	Allowed bool
	// Reason says why, for people.
	Reason string
	// Policy is the name of the rule that decided, as Envoy has it; empty if none did.
	Policy string
	// Notes are what was not judged.
	Notes []string
}

// ErrNoPort is the error for a port at which the proxy accepts nothing.
var ErrNoPort = errors.New("the proxy accepts nothing there")

// jwtFilter is the name of the metadata with the claims of a token, as in Istio.
const jwtFilter = "envoy.filters.http.jwt_authn"

// Ask answers a question.
func Ask(c Configuration, q Question) (Answer, error) {
	chains, err := inbound(c.Listeners, &q.Port)
	if err != nil {
		return Answer{}, err
	}
	chain := choose(chains, q)
	if chain == nil {
		if q.From == "" {
			return Answer{Reason: fmt.Sprintf("port %d accepts only mTLS (STRICT): give the client's identity with --from", q.Port)}, nil
		}
		return Answer{Reason: fmt.Sprintf("port %d accepts no mTLS (DISABLE)", q.Port)}, nil
	}
	request := judge.Request{
		Method: q.Method, Path: q.Path, Authority: q.Authority, Headers: q.Headers,
		Source: q.Address, Destination: netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(q.Port)),
	}
	if q.From != "" {
		request.Peer = &judge.Peer{URIs: []string{q.From}}
	}
	rules, notes, err := rulesOf(chain, c.Extensions, &request, q)
	if refused, ok := errors.AsType[*tokenError](err); ok {
		return Answer{Reason: refused.Error()}, nil
	}
	if err != nil {
		return Answer{}, err
	}
	verdict, err := judge.Decide(rules, request)
	if err != nil {
		return Answer{}, err
	}
	return Answer{Allowed: verdict.Allowed, Policy: verdict.Policy, Reason: reason(verdict, len(rules)), Notes: notes}, nil
}

func reason(v judge.Verdict, rules int) string {
	switch {
	case rules == 0:
		return "no policy applies"
	case v.Policy != "" && v.Allowed:
		return "a rule allows it"
	case v.Policy != "":
		return "a rule denies it"
	case v.Allowed:
		return "no rule denies it, and no ALLOW policy applies"
	default:
		return "an ALLOW policy applies, and no rule allows it"
	}
}

// portChain is a filter chain, and the port of what it is for.
type portChain struct {
	port uint32
	*listenerv3.FilterChain
}

// inbound returns the chains of a port. If the port is 0 and there is only one, it sets it.
func inbound(listeners []*listenerv3.Listener, port *uint32) ([]portChain, error) {
	var all []portChain
	var ports []uint32
	for _, l := range listeners {
		if l.GetTrafficDirection() != corev3.TrafficDirection_INBOUND {
			continue
		}
		own := l.GetAddress().GetSocketAddress().GetPortValue()
		for _, c := range l.GetFilterChains() {
			at := c.GetFilterChainMatch().GetDestinationPort().GetValue()
			captures := l.GetUseOriginalDst().GetValue() || slices.ContainsFunc(l.GetListenerFilters(), func(f *listenerv3.ListenerFilter) bool {
				return f.GetName() == "envoy.filters.listener.original_dst"
			})
			if !captures {
				at = own
			}
			if captures && at == own { // what is sent to the listener itself
				continue
			}
			all = append(all, portChain{at, c})
			if at != 0 {
				ports = append(ports, at)
			}
		}
	}
	slices.Sort(ports)
	ports = slices.Compact(ports)
	if *port == 0 {
		if len(ports) != 1 {
			return nil, fmt.Errorf("the proxy has %d inbound ports (%s): choose one with --port", len(ports), list(ports))
		}
		*port = ports[0]
	}
	chains := of(all, *port)
	if len(chains) == 0 {
		chains = of(all, 0) // ports that no service names, with packet capture
	}
	if len(chains) == 0 {
		return nil, fmt.Errorf("port %d: %w; it has %s", *port, ErrNoPort, cmp.Or(list(ports), "no inbound port"))
	}
	return chains, nil
}

func of(all []portChain, port uint32) []portChain {
	return slices.DeleteFunc(slices.Clone(all), func(c portChain) bool { return c.port != port })
}

func list(ports []uint32) string {
	out := make([]string, 0, len(ports))
	for _, p := range ports {
		out = append(out, strconv.FormatUint(uint64(p), 10))
	}
	return strings.Join(out, ", ")
}

// choose returns the chain of the port for a client with or without an identity; nil if there
// is none. A port without a declared protocol has chains of HTTP and of TCP.
func choose(chains []portChain, q Question) *listenerv3.FilterChain {
	var rest *listenerv3.FilterChain
	for _, c := range chains {
		if (c.GetTransportSocket() != nil) != (q.From != "") {
			continue
		}
		if c.GetFilterChainMatch().GetTransportProtocol() == "tls" && q.From == "" { // the application's own TLS
			if q.Method == "" && rest == nil {
				rest = c.FilterChain
			}
			continue
		}
		if isHTTP := manager(c.FilterChain) != nil; isHTTP == (q.Method != "") {
			return c.FilterChain
		}
		rest = c.FilterChain
	}
	return rest
}

// manager is the filter with the connection manager of a chain of HTTP; nil for TCP.
func manager(c *listenerv3.FilterChain) *listenerv3.Filter {
	for _, f := range c.GetFilters() {
		if f.GetTypedConfig().MessageIs(&hcmv3.HttpConnectionManager{}) {
			return f
		}
	}
	return nil
}

// rulesOf returns the rules of a chain in their order, and what it has besides that is not
// judged. It normalizes the path of the request as the chain does, and adds what is known of its
// token. An error is a *tokenError if the chain refuses that.
func rulesOf(c *listenerv3.FilterChain, extensions map[string]*anypb.Any, r *judge.Request, q Question) (rules []*rbacconfigv3.RBAC, notes []string, err error) {
	f, asks := manager(c), asked{}
	if f == nil {
		for _, f := range c.GetFilters() {
			if isExtAuthz(f.GetTypedConfig()) {
				notes = asks.note(notes)
			}
			if !f.GetTypedConfig().MessageIs(&networkrbacv3.RBAC{}) {
				continue
			}
			var config networkrbacv3.RBAC
			if err := f.GetTypedConfig().UnmarshalTo(&config); err != nil {
				return nil, nil, fmt.Errorf("reading the filter %q: %w", f.GetName(), err)
			}
			rules = append(rules, config.GetRules())
			if err := asks.match(config.GetShadowRules(), r); err != nil {
				return nil, nil, err
			}
		}
		if r.Method != "" {
			notes = append(notes, "the port is for TCP: the request is judged as a connection")
			r.Method, r.Path, r.Authority, r.Headers = "", "", "", nil
		}
		return present(rules), notes, nil
	}
	if r.Method == "" {
		return nil, nil, errors.New("the port is for HTTP: give METHOD and PATH")
	}
	var m hcmv3.HttpConnectionManager
	if err := f.GetTypedConfig().UnmarshalTo(&m); err != nil {
		return nil, nil, fmt.Errorf("reading the filter %q: %w", f.GetName(), err)
	}
	if r.Path, err = normalize(r.Path, &m); err != nil {
		return nil, nil, err
	}
	for _, h := range m.GetHttpFilters() {
		config := h.GetTypedConfig()
		if h.GetConfigDiscovery() != nil {
			if config = extensions[h.GetName()]; config == nil {
				return nil, nil, fmt.Errorf("the configuration lacks the extension %q, without which the proxy answers nothing", h.GetName())
			}
		}
		switch {
		case config.MessageIs(&httprbacv3.RBAC{}):
			var rbac httprbacv3.RBAC
			if err := config.UnmarshalTo(&rbac); err != nil {
				return nil, nil, fmt.Errorf("reading the filter %q: %w", h.GetName(), err)
			}
			rules = append(rules, rbac.GetRules())
			if err := asks.match(rbac.GetShadowRules(), r); err != nil {
				return nil, nil, err
			}
		case config.MessageIs(&jwtv3.JwtAuthentication{}):
			var tokens jwtv3.JwtAuthentication
			if err := config.UnmarshalTo(&tokens); err != nil {
				return nil, nil, fmt.Errorf("reading the filter %q: %w", h.GetName(), err)
			}
			payload, more, err := checkTokens(&tokens, q, r)
			if err != nil {
				return nil, nil, err
			}
			r.Metadata = map[string]*structpb.Struct{jwtFilter: payload}
			notes = append(notes, more...)
		case isExtAuthz(config):
			notes = asks.note(notes)
		}
	}
	return present(rules), notes, nil
}

func isExtAuthz(config *anypb.Any) bool { return strings.HasSuffix(config.GetTypeUrl(), ".ExtAuthz") }

// asked is the rule of a CUSTOM policy that matches the request, for the filter behind it that asks
// an extension provider; empty if none does.
type asked struct{ rule string }

// match judges the shadow rules of a filter, which may be those of CUSTOM policies.
func (a *asked) match(shadow *rbacconfigv3.RBAC, r *judge.Request) error {
	a.rule = ""
	if shadow == nil {
		return nil
	}
	v, err := judge.Evaluate(shadow, *r)
	a.rule = v.Policy
	return err
}

// note adds whom the filter behind the rules asks. What it answers is not known.
func (a *asked) note(notes []string) []string {
	provider, ok := authz.ProviderOf(a.rule)
	if !ok {
		return notes
	}
	namespace, name, rule, _ := authz.ParseRuleName(a.rule)
	return append(notes, fmt.Sprintf("it is asked of the extension provider %s, which may deny it: AuthorizationPolicy %s/%s, rules[%d]", provider, namespace, name, rule))
}

func present(list []*rbacconfigv3.RBAC) []*rbacconfigv3.RBAC {
	return slices.DeleteFunc(list, func(r *rbacconfigv3.RBAC) bool { return r == nil })
}
