package view

import (
	"encoding/hex"
	"slices"
	"strings"

	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Slot is a place in an HTTP filter chain for a filter whose configuration is an [Extension]
// of that name, so that the filter's rules change without its listener. Slots are there from
// the start, without effect as long as nothing applies. The names are those of Envoy's filters,
// followed by what tells several of one kind apart.
type Slot string

// The slots of inbound HTTP chains, in their order. With more than one extension provider, the
// first two are there once for each, with a dot and the name of the provider behind them.
const (
	CustomSlot   Slot = "envoy.filters.http.rbac.custom"
	ExtAuthzSlot Slot = "envoy.filters.http.ext_authz"
	// JWTSlot checks tokens. It stands before all that may ask for their claims. Envoy has the
	// claims under this name, whatever the filter's.
	JWTSlot Slot = "envoy.filters.http.jwt_authn"

	AuditSlot Slot = "envoy.filters.http.rbac.audit"
	DenySlot  Slot = "envoy.filters.http.rbac.deny"
	AllowSlot Slot = "envoy.filters.http.rbac.allow"
)

// For returns the slot for one of several extension providers.
func (s Slot) For(provider string) Slot { return s + "." + Slot(provider) }

// Kind is the slot without the name of an extension provider.
func (s Slot) Kind() Slot {
	for _, kind := range []Slot{CustomSlot, ExtAuthzSlot} {
		if strings.HasPrefix(string(s), string(kind)+".") {
			return kind
		}
	}
	return s
}

// slots are those of the proxy's chains.
func (in *inboundInput) slots() []Slot {
	var out []Slot
	for _, e := range in.extensionInputs() {
		out = append(out, e.Slot)
	}
	return out
}

// extensionInputs are what the slots of the proxy's chains have, in the order of the slots. The
// one for AUDIT policies, which decide nothing, is there only if one applies.
func (in *inboundInput) extensionInputs() []extensionInput {
	out := append(in.Authorization.customInputs(), extensionInput{Slot: JWTSlot, Authentication: in.Authentication, ClearRouteCache: in.Gateway && in.Authentication != nil})
	for _, slot := range []Slot{AuditSlot, DenySlot, AllowSlot} {
		if e := (extensionInput{Slot: slot, Authorization: in.Authorization.in(slot)}); e.Authorization != nil || slot != AuditSlot {
			out = append(out, e)
		}
	}
	return out
}

// slotOf is the slot of an action. What is unknown denies.
func slotOf(action security.AuthorizationPolicy_Action) Slot {
	switch action {
	case security.AuthorizationPolicy_CUSTOM:
		return CustomSlot
	case security.AuthorizationPolicy_ALLOW:
		return AllowSlot
	case security.AuthorizationPolicy_AUDIT:
		return AuditSlot
	default:
		return DenySlot
	}
}

// in are the policies of one slot; nil if there is none.
func (a *Authorization) in(slot Slot) *Authorization {
	return a.where(func(p *AuthorizationPolicy) bool { return slotOf(p.Action) == slot })
}

// where are the policies that a condition holds for; nil if there is none.
func (a *Authorization) where(holds func(*AuthorizationPolicy) bool) *Authorization {
	if a == nil {
		return nil
	}
	out := &Authorization{TrustDomains: a.TrustDomains, Issuers: a.Issuers, JoinsHeaders: a.JoinsHeaders}
	for i, p := range a.Policies {
		if holds(&a.Policies[i]) {
			out.Policies, out.origins = append(out.Policies, p), append(out.origins, a.origins[i])
		}
	}
	if len(out.Policies) == 0 {
		return nil
	}
	return out
}

// Extension is the input of one TypedExtensionConfig resource (ECDS): the configuration of the
// filters in one slot, the same in all chains of a proxy. The zero value of all but its Slot
// has no effect on any request.
type Extension struct {
	base
	Slot Slot
	// Deny refuses every request, because a security policy applies that cannot be
	// enforced.
	Deny bool
	// Authorization is what the policies of the slot's action say; nil if there is none.
	Authorization *Authorization
	// Authentication is what is said of tokens, in the slot for them; nil if nothing is.
	Authentication *Authentication
	// ClearRouteCache has Envoy choose the route after the token is checked, because routes of
	// gateways may match its claims.
	ClearRouteCache bool
	// Provider is whom the slot asks, if it is an ExtAuthzSlot; or nil. If it cannot be asked,
	// what the rules of Authorization match is denied.
	Provider *Provider
}

// extensionInput is what an extension is made from. Its key covers the origins, because equal
// extensions of many workloads come from different objects.
type extensionInput struct {
	Slot           Slot
	Deny           bool
	Authorization  *Authorization
	Authentication *Authentication
	Provider       *Provider
	Origins        []*mesh.Origin

	ClearRouteCache bool
}

func (in extensionInput) build(*meshContext) *Extension {
	e := &Extension{
		base: base{origins: in.Origins}, Slot: in.Slot, Deny: in.Deny,
		Authorization: in.Authorization, Authentication: in.Authentication, Provider: in.Provider,
		ClearRouteCache: in.ClearRouteCache,
	}
	e.seal(contentHash("Extension", e))
	return e
}

// extensionsFor are those that the listeners of the proxy have slots for.
func (in *inboundInput) extensionsFor(mc *meshContext, listeners []Part) []Part {
	if !hasSlots(listeners) {
		return nil
	}
	return in.extensions(mc)
}

// extensions are those of all slots.
func (in *inboundInput) extensions(mc *meshContext) []Part {
	var out []Part
	for _, e := range in.extensionInputs() {
		var origins []*mesh.Origin
		if e.Authorization != nil {
			origins = e.Authorization.origins
		}
		if e.Provider != nil {
			origins = slices.Concat(origins, e.Provider.origins)
		}
		if e.Authentication != nil {
			origins = e.Authentication.origins
		}
		if e.Slot == DenySlot && in.Deny {
			e.Deny, origins = true, slices.Concat(origins, in.denyOrigins)
		}
		if len(origins) > 0 {
			e.Origins = originsOf(origins...)
		}
		out = append(out, mc.extensions.get(mc, e))
	}
	return out
}

func hasSlots(listeners []Part) bool {
	for _, p := range listeners {
		l, ok := p.(*Listener)
		if !ok {
			continue
		}
		for _, c := range l.Chains {
			if c.HTTP != nil && len(c.HTTP.Slots) > 0 {
				return true
			}
		}
	}
	return false
}

// serveHTTP makes an inbound chain one for HTTP. Its rules are in its slots.
func (in *inboundInput) serveHTTP(c *FilterChain, http *HTTPConnectionManager) {
	http.Slots = in.slots()
	c.HTTP, c.Deny, c.Authorization, c.Rules = http, false, nil, in.rules()
}

// rules is a short hash of what decides requests; empty if nothing does. What decides nothing,
// as in a dry run, is not in it, so that it drains no connection. Nor are keys, which issuers
// change when they like.
func (in *inboundInput) rules() string {
	deciding := struct {
		Deny           bool
		Authorization  *decidingPolicies
		Authentication *Authentication
	}{in.Deny, in.Authorization.deciding().policies(), in.Authentication.withoutKeys()}
	if !deciding.Deny && deciding.Authorization == nil && deciding.Authentication == nil {
		return ""
	}
	h := contentHash("rules", deciding)
	return hex.EncodeToString(h[:4])
}

// decidingPolicies are those of an Authorization, without its issuers: they are those of an Authentication.
type decidingPolicies struct {
	TrustDomains []string
	JoinsHeaders bool
	Policies     []AuthorizationPolicy
	Providers    []Provider
}

func (a *Authorization) policies() *decidingPolicies {
	if a == nil {
		return nil
	}
	return &decidingPolicies{a.TrustDomains, a.JoinsHeaders, a.Policies, a.Providers}
}

// deciding is what is in force of policies; nil if nothing is.
func (a *Authorization) deciding() *Authorization {
	return a.where(func(p *AuthorizationPolicy) bool { return !p.DryRun && slotOf(p.Action) != AuditSlot })
}
