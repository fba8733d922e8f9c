package webhook

import (
	"slices"
	"strings"
	"sync"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/metakeys"
)

// meshGateway is the name that stands for all sidecars in a list of gateways.
const meshGateway = "mesh"

// gatewayAPI is the value of the annotations that mark objects made from the
// Gateway API, which has wider names for gateways and destinations.
const gatewayAPI = "gateway"

// vsContext is what the routes of a VirtualService are judged with.
type vsContext struct {
	hosts []string
	// covered has the hosts to find others in.
	covered func() hostSet
	// delegate is true when other VirtualServices include this one.
	delegate bool
	// outside is true when the list of gateways lacks the mesh (an empty list too).
	outside bool
	// fromGatewayAPI relaxes the names of gateways and destinations.
	fromGatewayAPI bool
}

func virtualService(c cursor, o Object, vs *networking.VirtualService) {
	ctx := vsContext{
		hosts:          vs.Hosts,
		covered:        sync.OnceValue(func() hostSet { return newHostSet(vs.Hosts) }),
		delegate:       len(vs.Hosts) == 0,
		outside:        !slices.Contains(vs.Gateways, meshGateway),
		fromGatewayAPI: o.Annotations[metakeys.RouteSemantics] == gatewayAPI,
	}
	if ctx.delegate {
		c.delegateOnly(vs)
	}
	c.gatewayNames(vs.Gateways, ctx.fromGatewayAPI)
	onGateway := len(vs.Gateways) > 0 && ctx.outside
	if !onGateway {
		c.noClaims(vs.Http)
	}
	c.virtualHosts(vs, onGateway)
	if len(vs.Http)+len(vs.Tls)+len(vs.Tcp) == 0 {
		c.wrong("there is no route; write http, tls or tcp")
	}
	for i, r := range vs.Http {
		c.item("http", i).httpRoute(r, ctx)
	}
	for i, r := range vs.Tls {
		c.item("tls", i).tlsRoute(r, ctx)
	}
	for i, r := range vs.Tcp {
		c.item("tcp", i).tcpRoute(r, ctx)
	}
	c.exportTo(vs.ExportTo, exported{namespace: o.Namespace})
	c.unreachable(vs)
}

// delegateOnly refuses what only a VirtualService with hosts can have.
func (c cursor) delegateOnly(vs *networking.VirtualService) {
	const why = "a VirtualService without hosts is a delegate of others and cannot have %s; write hosts, or remove them"
	if len(vs.Gateways) > 0 {
		c.at("gateways").wrong(why, "gateways")
	}
	if len(vs.Tls) > 0 {
		c.at("tls").wrong(why, "tls routes")
	}
	if len(vs.Tcp) > 0 {
		c.at("tcp").wrong(why, "tcp routes")
	}
}

// noClaims refuses matches of token claims where sidecars take part: only a
// gateway verifies the token before it routes.
func (c cursor) noClaims(routes []*networking.HTTPRoute) {
	const why = "only gateways can route by the claims of a token; bind this VirtualService to gateways, without \"mesh\""
	for i, r := range routes {
		for j, m := range r.GetMatch() {
			at := c.item("http", i).item("match", j)
			for _, name := range sorted(m.GetHeaders()) {
				if isClaimHeader(name) {
					at.entry("headers", name).wrong(why)
				}
			}
			for _, name := range sorted(m.GetWithoutHeaders()) {
				if isClaimHeader(name) {
					at.entry("withoutHeaders", name).wrong(why)
				}
			}
		}
	}
}

func (c cursor) virtualHosts(vs *networking.VirtualService, onGateway bool) {
	sound := true
	for i, h := range vs.Hosts {
		why := whyNotHost(h)
		if onGateway {
			why = whyNotGatewayHost(h, matchesSNI(vs))
		}
		switch {
		case why == "" && h == "*" && !onGateway:
			c.item("hosts", i).wrong("\"*\" is allowed only on gateways: sidecars would send all traffic there; name the hosts")
		case why == "" || isIP(h):
			continue
		default:
			c.item("hosts", i).wrong("%s", why)
		}
		sound = false
	}
	if !sound {
		return
	}
	for _, o := range overlapping(vs.Hosts) {
		c.item("hosts", o.later).wrong("%q and %q overlap; keep the wider one", vs.Hosts[o.first], vs.Hosts[o.later])
	}
}

func matchesSNI(vs *networking.VirtualService) bool {
	for _, r := range vs.Tls {
		for _, m := range r.GetMatch() {
			if len(m.GetSniHosts()) > 0 {
				return true
			}
		}
	}
	return false
}

// gatewayNames judges names of the form namespace/name. Istio stops at the first
// name without a slash and never looks at those behind it; here they become warnings.
func (c cursor) gatewayNames(names []string, fromGatewayAPI bool) {
	stopped := false
	for i, n := range names {
		at := c.item("gateways", i)
		say := at.wrong
		if stopped {
			say = at.warn
		}
		ns, name, slashed := strings.Cut(n, "/")
		if !slashed {
			if first, rest, dotted := strings.Cut(n, "."); dotted {
				second, _, _ := strings.Cut(rest, ".")
				at.warn("the form %q is out of date; write \"%s/%s\"", n, second, first)
			}
			if why := whyNotFQDN(n); why != "" {
				say("%s", why)
			}
			stopped = true
			continue
		}
		if !isDNSLabel(ns) {
			say("%q has no namespace before its slash; write namespace/name", n)
		}
		if name == "" || !isDNSLabel(name) && !fromGatewayAPI {
			say("%q has no gateway's name after its slash; write namespace/name", n)
		}
	}
}
