package analysis

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// destinations wants each destination of a route to lead somewhere.
func destinations(w *meshIndex, r *report) {
	for o, vs := range specs[*networking.VirtualService](w) {
		ns := o.Meta.Namespace
		for d := range destinationsOf(o, vs) {
			host := w.fqdn(d.Host, ns)
			visible, hidden := w.lookup(host, ns)
			switch {
			case len(visible) > 0:
				r.under(CodeUnknownPort, func(r *report) { w.port(r, d, visible) })
			case len(hidden) > 0:
				r.wrong(place{o, d.field + ".host"}, "the host %q is not exported to namespace %q; add it to exportTo of %s", host, ns, hidden[0].object.Meta.Key)
			default:
				severity := Error
				if w.in.OtherSources {
					severity = Warning
				}
				r.add(place{o, d.field + ".host"}, severity, fmt.Sprintf("no ServiceEntry defines the host %q%s; requests to it fail", host, w.nearHost(host)))
			}
			if d.Subset != "" {
				r.under(CodeUnknownSubset, func(r *report) { w.subset(r, d, host) })
			}
		}
	}
}

// port wants the destination's port to be one of the service's.
func (w *meshIndex) port(r *report, d destinationAt, services []*service) {
	if d.Port == nil {
		return
	}
	var have []string
	for _, s := range services {
		for _, p := range s.spec.Ports {
			if p.GetNumber() == d.Port.GetNumber() {
				return
			}
			have = append(have, strconv.FormatUint(uint64(p.GetNumber()), 10))
		}
	}
	r.wrong(place{d.object, d.field + ".port.number"}, "the service %q has no port %d; it has %s", services[0].host, d.Port.GetNumber(), orNone(have))
}

// subset wants a DestinationRule for the host to define the subset.
func (w *meshIndex) subset(r *report, d destinationAt, host mesh.Hostname) {
	var names []string
	rules := w.rulesFor(host, d.object.Meta.Namespace)
	for _, rule := range rules {
		for _, s := range rule.spec.Subsets {
			if s.Name == d.Subset {
				return
			}
			names = append(names, s.Name)
		}
	}
	at := place{d.object, d.field + ".subset"}
	if len(rules) == 0 {
		r.wrong(at, "the subset %q does not exist: there is no DestinationRule for %q; write one, or remove the subset", d.Subset, host)
		return
	}
	r.wrong(at, "the subset %q does not exist%s; %s has %s", d.Subset, near(d.Subset, names), rules[0].object.Meta.Key, orNone(names))
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	const most = 20 // each of many destinations says this
	slices.Sort(names)
	names = slices.Compact(names)
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// routeHosts warns of a host that sidecars route but nothing serves.
func routeHosts(w *meshIndex, r *report) {
	for o, vs := range specs[*networking.VirtualService](w) {
		if len(vs.Gateways) > 0 && !slices.Contains(vs.Gateways, meshGateway) {
			continue // what comes in at a gateway need not be a service
		}
		for i, h := range vs.Hosts {
			host := w.fqdn(h, o.Meta.Namespace)
			if host.IsWildcard() || w.in.OtherSources {
				continue
			}
			visible, hidden := w.lookup(host, o.Meta.Namespace)
			if len(visible)+len(hidden) == 0 {
				r.warn(place{o, fmt.Sprintf("spec.hosts[%d]", i)}, "no ServiceEntry defines the host %q%s, so proxies have no address for it, and maybe no port",
					host, w.nearHost(host))
			}
		}
	}
}

const meshGateway = "mesh"
