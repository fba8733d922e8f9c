package view

import "github.com/fairlead/fairlead/registry/mesh"

// Slot is a place in an HTTP filter chain for a filter whose configuration is an [Extension]
// of that name, so that the filter's rules change without its listener. Slots are there from
// the start, without effect as long as nothing applies. The names are those of Envoy's filters,
// followed by what tells several of one kind apart.
type Slot string

// The slots of inbound HTTP chains, in their order.
const (
	DenySlot  Slot = "envoy.filters.http.rbac.deny"
	AllowSlot Slot = "envoy.filters.http.rbac.allow"
)

func inboundSlots() []Slot { return []Slot{DenySlot, AllowSlot} }

// Extension is the input of one TypedExtensionConfig resource (ECDS): the configuration of the
// filters in one slot, the same in all chains of a proxy. The zero value of all but its Slot
// has no effect on any request.
type Extension struct {
	base
	Slot Slot
	// Deny refuses every request, because a security policy applies that cannot be
	// enforced.
	Deny bool
}

// extensionInput is what an extension is made from. Its key covers the origins, because equal
// extensions of many workloads come from different objects.
type extensionInput struct {
	Slot    Slot
	Deny    bool
	Origins []*mesh.Origin
}

func (in extensionInput) build(*meshContext) *Extension {
	e := &Extension{base: base{origins: in.Origins}, Slot: in.Slot, Deny: in.Deny}
	e.seal(contentHash("Extension", e))
	return e
}

// extensions are those that the listeners of the proxy have slots for.
func (in *inboundInput) extensions(mc *meshContext, listeners []Part) []Part {
	if !hasSlots(listeners) {
		return nil
	}
	var out []Part
	for _, slot := range inboundSlots() {
		e := extensionInput{Slot: slot}
		if slot == DenySlot && in.Deny {
			e.Deny, e.Origins = true, originsOf(in.denyOrigins...)
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
	http.Slots = inboundSlots()
	c.HTTP, c.Deny = http, false
}
