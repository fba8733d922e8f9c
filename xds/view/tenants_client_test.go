package view

import (
	"net/netip"
	"slices"
	"strings"
)

// client is an Envoy in a namespace that is nobody's of these.
type client struct {
	listeners           []*Listener
	routeConfigurations map[string]*RouteConfiguration
	origins             map[ClusterRef]string
}

func (c *tenantMesh) client(mode Interception) *client {
	out := &client{routeConfigurations: map[string]*RouteConfiguration{}, origins: map[ClusterRef]string{}}
	p := proxyIn("third", nil)
	p.Interception = mode
	for part := range Build(c.snapshot, p).Parts() {
		switch x := part.(type) {
		case *Listener:
			if !x.Inbound && x.Name != "virtualOutbound" {
				out.listeners = append(out.listeners, x)
			}
		case *RouteConfiguration:
			out.routeConfigurations[x.Name] = x
		case *Cluster:
			for _, o := range x.Origins() {
				out.origins[x.Ref] = o.Source
			}
		}
	}
	return out
}

// ask is a connection to an address, with a request of HTTP for an authority, if any.
// It returns the namespace that answers; empty is nobody.
func (cl *client) ask(to netip.Addr, authority string) string {
	const port = 80
	var at, anywhere *Listener
	for _, l := range cl.listeners {
		if l.Port != port {
			continue
		}
		for _, a := range l.Addresses {
			switch ip, err := netip.ParseAddr(a); {
			case err != nil:
			case ip.Unmap() == to:
				at = l
			case ip.IsUnspecified():
				anywhere = l
			}
		}
	}
	if at == nil {
		at = anywhere
	}
	if at == nil {
		return ""
	}
	chain := cl.chain(at, to, authority != "")
	switch {
	case chain == nil:
		return ""
	case chain.TCP != nil:
		return cl.origins[chain.TCP.Destinations[0].Cluster]
	default:
		return cl.route(chain.HTTP.RouteName, authority)
	}
}

// chain is the one that takes a connection, as Envoy looks for it: the narrowest range
// first, and what inspection finds after that.
func (cl *client) chain(l *Listener, to netip.Addr, http bool) *FilterChain {
	narrowest := func(c *FilterChain) int {
		if len(c.Match.CIDRs) == 0 {
			return -1
		}
		best := -2
		for _, text := range c.Match.CIDRs {
			p, err := netip.ParsePrefix(text)
			if a, err2 := netip.ParseAddr(text); err != nil && err2 == nil {
				p, err = netip.PrefixFrom(a, a.BitLen()), nil
			}
			if err == nil && p.Contains(to) {
				best = max(best, p.Bits())
			}
		}
		return best
	}
	best := -2
	for _, c := range l.Chains {
		best = max(best, narrowest(c))
	}
	var fallback *FilterChain
	for _, c := range l.Chains {
		switch {
		case narrowest(c) != best || best == -2 || len(c.Match.ServerNames) > 0:
		case len(c.Match.ALPN) > 0:
			if http {
				return c
			}
		default:
			fallback = c
		}
	}
	if fallback == nil {
		return l.Default
	}
	return fallback
}

func (cl *client) route(name, authority string) string {
	t := cl.routeConfigurations[name]
	if t == nil || authority == "" {
		return ""
	}
	var best *VirtualHost
	length := -1
	for _, vh := range t.VirtualHosts {
		for _, d := range vh.Domains {
			switch {
			case d == authority:
				best, length = vh, 1<<20
			case strings.HasPrefix(d, "*") && strings.HasSuffix(authority, d[1:]) && len(d) > length:
				best, length = vh, len(d)
			}
		}
	}
	if best == nil {
		return ""
	}
	return cl.origins[best.Routes[0].Destinations[0].Cluster]
}

// answers are all namespaces that answer for a name in some way.
func (cl *client) answers(name string) []string {
	nobody := netip.MustParseAddr(nobodysAddress)
	var out []string
	if a, err := netip.ParseAddr(name); err == nil {
		out = append(out, cl.ask(a, ""), cl.ask(a, bracketed(name)), cl.ask(nobody, bracketed(name)), cl.ask(a, "nobodys.example"))
	} else {
		out = append(out, cl.ask(nobody, name))
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(s string) bool { return s == "" })
}
