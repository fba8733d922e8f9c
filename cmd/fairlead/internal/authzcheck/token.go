package authzcheck

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/xds/authn"
	"github.com/fairlead/fairlead/xds/authz/judge"
)

// tokenError says why a proxy refuses a request because of its token, or of what it lacks.
type tokenError struct {
	why string
	// weight says which of several reasons a person wants to know.
	weight int
}

func (r *tokenError) Error() string { return r.why }

// The weights of reasons.
const (
	isMissing = iota
	ofNobody
	isNoToken
	forOthers
	hasNoKeys
)

var errMissing = &tokenError{"the request is refused (401): it has no token", isMissing}

// tokenCheck asks a filter for tokens about a request (Envoy's
// source/extensions/filters/http/jwt_authn). Signatures and times are not checked.
type tokenCheck struct {
	filter  *jwtv3.JwtAuthentication
	q       Question
	request *judge.Request
	found   bool // a token in the request itself
}

// checkTokens returns what the rules behind the filter get to know of the request's token, and
// changes the headers of the request as the filter does. An error is a *tokenError if the filter
// refuses the request.
func checkTokens(filter *jwtv3.JwtAuthentication, q Question, r *judge.Request) (known *structpb.Struct, notes []string, err error) {
	known = &structpb.Struct{Fields: map[string]*structpb.Value{}}
	if r.Headers = maps.Clone(r.Headers); r.Headers == nil {
		r.Headers = map[string][]string{}
	}
	c := &tokenCheck{filter: filter, q: q, request: r}
	requires, err := c.requirement()
	if err != nil || requires == nil {
		return known, nil, err
	}
	if requires.GetProviderName() == authn.Nobody {
		return nil, nil, &tokenError{why: "every request is refused (401): a RequestAuthentication of the workload cannot be enforced; proxy-status and analyze name it"}
	}
	if err := c.ask(requires, nil, known); err != nil {
		return nil, nil, err
	}
	if c.found {
		notes = append(notes, "the signature and the times of the token in the request are not checked")
	}
	return known, notes, nil
}

// requirement is what the request has to meet; nil means nothing.
func (c *tokenCheck) requirement() (*jwtv3.JwtRequirement, error) {
	if c.filter.GetBypassCorsPreflight() && c.request.Method == http.MethodOptions && c.header("origin") != "" && c.header("access-control-request-method") != "" {
		return nil, nil //nolint:nilnil // nothing is required
	}
	for _, rule := range c.filter.GetRules() {
		prefix, ok := rule.GetMatch().GetPathSpecifier().(*routev3.RouteMatch_Prefix)
		if !ok || rule.GetRequirementName() != "" || len(rule.GetMatch().GetQueryParameters()) > 0 {
			return nil, fmt.Errorf("a rule for tokens: %w", judge.ErrUnknown)
		}
		matches, err := c.matches(rule.GetMatch().GetHeaders())
		if err != nil {
			return nil, err
		}
		if matches && strings.HasPrefix(c.request.Path, prefix.Prefix) {
			return rule.GetRequires(), nil
		}
	}
	return nil, nil //nolint:nilnil // nothing is required
}

// matches reports whether the headers of the request do.
func (c *tokenCheck) matches(headers []*routev3.HeaderMatcher) (bool, error) {
	all := []*rbacconfigv3.Permission{{Rule: &rbacconfigv3.Permission_Any{Any: true}}}
	for _, h := range headers {
		all = append(all, &rbacconfigv3.Permission{Rule: &rbacconfigv3.Permission_Header{Header: h}})
	}
	v, err := judge.Evaluate(&rbacconfigv3.RBAC{Policies: map[string]*rbacconfigv3.Policy{"": {
		Permissions: []*rbacconfigv3.Permission{{Rule: &rbacconfigv3.Permission_AndRules{AndRules: &rbacconfigv3.Permission_Set{Rules: all}}}},
		Principals:  []*rbacconfigv3.Principal{{Identifier: &rbacconfigv3.Principal_Any{Any: true}}},
	}}}, *c.request)
	return v.Allowed, err
}

// ask judges the request by a requirement, and adds what it tells of a token. beside are the
// providers of the same list.
func (c *tokenCheck) ask(r *jwtv3.JwtRequirement, beside []string, known *structpb.Struct) error {
	switch r := r.GetRequiresType().(type) {
	case nil:
		return nil
	case *jwtv3.JwtRequirement_ProviderName:
		return c.provider(r.ProviderName, known)
	case *jwtv3.JwtRequirement_RequiresAny:
		return c.anyOf(r.RequiresAny.GetRequirements(), known)
	case *jwtv3.JwtRequirement_RequiresAll:
		for _, one := range r.RequiresAll.GetRequirements() {
			if err := c.ask(one, nil, known); err != nil {
				return err
			}
		}
		return nil
	case *jwtv3.JwtRequirement_AllowMissing:
		for _, name := range beside {
			if len(c.tokens(c.filter.GetProviders()[name])) > 0 {
				return &tokenError{weight: isMissing}
			}
		}
		return nil
	default:
		return fmt.Errorf("a requirement of tokens, %T: %w", r, judge.ErrUnknown)
	}
}

func (c *tokenCheck) anyOf(list []*jwtv3.JwtRequirement, known *structpb.Struct) error {
	// As in Envoy, that nothing is there is looked at last.
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b *jwtv3.JwtRequirement) int {
		switch last := a.GetAllowMissing() != nil; {
		case last == (b.GetAllowMissing() != nil):
			return 0
		case last:
			return 1
		default:
			return -1
		}
	})
	var beside []string
	var worst *tokenError
	for _, one := range list {
		if name := one.GetProviderName(); name != "" {
			beside = append(beside, name)
		}
		err := c.ask(one, beside, known)
		if err == nil {
			return nil
		}
		refused, ok := errors.AsType[*tokenError](err)
		if !ok {
			return err
		}
		if refused.why != "" && (worst == nil || refused.weight >= worst.weight) {
			worst = refused
		}
	}
	if worst == nil {
		worst = errMissing
	}
	return worst
}

// provider judges the tokens that a provider finds: each has to be good.
func (c *tokenCheck) provider(name string, known *structpb.Struct) error {
	p := c.filter.GetProviders()[name]
	if p == nil {
		return fmt.Errorf("the filter for tokens has no provider %q: %w", name, judge.ErrUnknown)
	}
	c.remove(p.GetForwardPayloadHeader())
	for _, h := range p.GetClaimToHeaders() {
		c.remove(h.GetHeaderName())
	}
	list := c.tokens(p)
	if len(list) == 0 {
		return errMissing
	}
	// As in Envoy, the last one first; what a good one has told stays told if another is bad, in
	// case that another provider accepts the request.
	for _, t := range slices.Backward(list) {
		if err := c.judge(p, t.claims); err != nil {
			return err
		}
		c.found = c.found || t.found
		if t.header != "" && !p.GetForward() {
			c.remove(t.header)
		}
		for _, h := range p.GetClaimToHeaders() {
			if v := claimText(t.claims, h.GetClaimName()); v != "" {
				name := http.CanonicalHeaderKey(h.GetHeaderName())
				c.request.Headers[name] = append(slices.Clone(c.request.Headers[name]), v)
			}
		}
		if key := p.GetPayloadInMetadata(); key != "" {
			known.Fields[key] = structpb.NewStructValue(split(t.claims, p.GetNormalizePayloadInMetadata().GetSpaceDelimitedClaims()))
		}
	}
	return nil
}

// judge says why a provider refuses a token; nil means that it does not.
func (c *tokenCheck) judge(p *jwtv3.JwtProvider, claims *structpb.Struct) error {
	if claims == nil {
		return &tokenError{"the token is refused (401): it is no token, which has three parts in base64url with dots between them", isNoToken}
	}
	issuer := claims.GetFields()["iss"].GetStringValue()
	switch {
	case p.GetIssuer() != "" && p.GetIssuer() != issuer:
		return &tokenError{fmt.Sprintf("the token is refused (401): no RequestAuthentication for this workload has its issuer (iss), %q", issuer), ofNobody}
	case !audience(p.GetAudiences(), claims.GetFields()["aud"]):
		return &tokenError{"the token is refused (403): its audience (aud) is none of " + strings.Join(p.GetAudiences(), ", "), forOthers}
	case !c.q.Offline && p.GetLocalJwks() != nil && p.GetLocalJwks().GetInlineString() == "":
		return &tokenError{fmt.Sprintf("the token is refused (401): the proxy has no keys of the issuer %q", issuer), hasNoKeys}
	}
	return nil
}

// foundToken is a token that a provider finds.
type foundToken struct {
	claims *structpb.Struct // nil for what is no token
	header string           // where it was; empty if in no header
	found  bool             // in the request itself
}

// tokens are those that a provider finds. One that the question has beside the request is where
// each provider looks that looks anywhere.
func (c *tokenCheck) tokens(p *jwtv3.JwtProvider) (out []foundToken) {
	headers, params := p.GetFromHeaders(), p.GetFromParams()
	if len(headers)+len(params)+len(p.GetFromCookies()) == 0 {
		headers, params = []*jwtv3.JwtHeader{{Name: "authorization", ValuePrefix: "Bearer "}}, []string{"access_token"}
	}
	nowhere := len(headers) == 1 && headers[0].GetName() == authn.Nowhere && len(params)+len(p.GetFromCookies()) == 0
	if c.q.Claims != nil && !nowhere {
		out = append(out, foundToken{claims: c.q.Claims})
	}
	add := func(text, header string) {
		out = append(out, foundToken{claimsOf(text), header, true})
	}
	for _, h := range headers {
		for name, values := range c.request.Headers {
			for _, v := range values {
				if _, rest, ok := strings.Cut(v, h.GetValuePrefix()); ok && strings.EqualFold(name, h.GetName()) {
					add(rest, name)
				}
			}
		}
	}
	_, query, _ := strings.Cut(c.request.Path, "?")
	if values, _ := url.ParseQuery(query); values != nil {
		for _, name := range params {
			if list := values[name]; len(list) > 0 {
				add(list[0], "")
			}
		}
	}
	for _, name := range p.GetFromCookies() {
		if cookie, err := (&http.Request{Header: http.Header{"Cookie": {c.header("cookie")}}}).Cookie(name); err == nil {
			add(cookie.Value, "")
		}
	}
	return out
}

// header is the values of a header; its name is in lower case.
func (c *tokenCheck) header(name string) string {
	var out []string
	for k, values := range c.request.Headers {
		if strings.EqualFold(k, name) {
			out = append(out, values...)
		}
	}
	return strings.Join(out, "; ")
}

func (c *tokenCheck) remove(header string) {
	maps.DeleteFunc(c.request.Headers, func(k string, _ []string) bool { return header != "" && strings.EqualFold(k, header) })
}

// claimsOf reads the claims of a token; nil if it is none.
func claimsOf(token string) *structpb.Struct {
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 {
		return nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil
	}
	out := &structpb.Struct{}
	if protojson.Unmarshal(raw, out) != nil {
		return nil
	}
	return out
}

// claimText is what a header gets of a claim; dots lead into structs.
func claimText(claims *structpb.Struct, name string) string {
	v, ok := claims.GetFields()[name]
	if head, rest, nested := strings.Cut(name, "."); !ok && nested {
		return claimText(claims.GetFields()[head].GetStructValue(), rest)
	}
	switch v := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		return v.StringValue
	case *structpb.Value_BoolValue:
		return strconv.FormatBool(v.BoolValue)
	case *structpb.Value_NumberValue:
		return strconv.FormatFloat(v.NumberValue, 'f', -1, 64)
	default: // Envoy writes others in forms of their own
		return ""
	}
}

// audience reports whether a token is for one of the audiences; none means any.
func audience(audiences []string, aud *structpb.Value) bool {
	if len(audiences) == 0 {
		return true
	}
	if list := aud.GetListValue(); list != nil {
		return slices.ContainsFunc(list.GetValues(), func(v *structpb.Value) bool { return slices.Contains(audiences, v.GetStringValue()) })
	}
	return slices.Contains(audiences, aud.GetStringValue())
}

// split makes a list of the words of some claims, as Envoy does.
func split(claims *structpb.Struct, names []string) *structpb.Struct {
	out := &structpb.Struct{Fields: maps.Clone(claims.GetFields())}
	for _, name := range names {
		text, ok := out.GetFields()[name].GetKind().(*structpb.Value_StringValue)
		if !ok {
			continue
		}
		list := &structpb.ListValue{}
		for word := range strings.SplitSeq(text.StringValue, " ") {
			list.Values = append(list.Values, structpb.NewStringValue(word))
		}
		out.Fields[name] = structpb.NewListValue(list)
	}
	return out
}
