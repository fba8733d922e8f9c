package analysis

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// routeOf is one host that a VirtualService routes for sidecars.
type routeOf struct {
	object *manifest.Object
	spec   *networking.VirtualService
	index  int
}

// hostsTwice warns of a host that two VirtualServices route for the same sidecars:
// they are not merged, the older one wins whole.
func hostsTwice(w *meshIndex, r *report) {
	routes := map[mesh.Hostname][]routeOf{}
	for o, vs := range specs[*networking.VirtualService](w) {
		if len(vs.Gateways) > 0 && !slices.Contains(vs.Gateways, meshGateway) {
			continue
		}
		for i, h := range vs.Hosts {
			host := w.fqdn(h, o.Meta.Namespace)
			routes[host] = append(routes[host], routeOf{o, vs, i})
		}
	}
	for host, list := range routes {
		slices.SortStableFunc(list, func(a, b routeOf) int { return before(a.object, b.object) })
		for i, later := range list {
			for _, first := range list[:i] {
				if first.object == later.object || !meet(first, later) {
					continue
				}
				r.warn(place{later.object, fmt.Sprintf("spec.hosts[%d]", later.index)}, "%s routes %q too and comes first, so the routes here have no effect; merge the two",
					first.object.Meta.Key, host)
				break
			}
		}
	}
}

// meet reports whether some namespace sees both.
func meet(a, b routeOf) bool {
	open := func(x routeOf) bool { return len(x.spec.ExportTo) == 0 || slices.Contains(x.spec.ExportTo, "*") }
	if open(a) || open(b) {
		return true
	}
	for _, ns := range append(slices.Clone(a.spec.ExportTo), a.object.Meta.Namespace) {
		if exported(a.spec.ExportTo, a.object.Meta.Namespace, ns) && exported(b.spec.ExportTo, b.object.Meta.Namespace, ns) {
			return true
		}
	}
	return false
}

// keysTwice reports objects of the same kind, namespace and name: only the first one counts.
func keysTwice(w *meshIndex, r *report) {
	first := map[mesh.Key]*manifest.Object{}
	for _, o := range w.in.Objects {
		k := o.Meta.Key
		if k.Name == "" {
			continue
		}
		if f := first[k]; f != nil {
			r.wrong(place{o, "metadata.name"}, "%s is already defined at %s, which is in force; rename or remove one of them", k, f.Meta.Origin)
			continue
		}
		first[k] = o
	}
}

// unknownGateways wants the gateways of a VirtualService to exist.
func unknownGateways(w *meshIndex, r *report) {
	have := map[string]bool{}
	for o := range specs[*networking.Gateway](w) {
		have[o.Meta.Namespace+"/"+o.Meta.Name] = true
	}
	for o, vs := range specs[*networking.VirtualService](w) {
		for i, g := range vs.Gateways {
			ref := gatewayRef(g, o.Meta.Namespace)
			if g == meshGateway || have[ref] {
				continue
			}
			r.wrong(place{o, fmt.Sprintf("spec.gateways[%d]", i)}, "there is no Gateway %q; write its NAMESPACE/NAME, or leave it out; mesh means the sidecars", ref)
		}
	}
}

// gatewayRef makes each form of a gateway's name namespace/name.
func gatewayRef(name, namespace string) string {
	ns, rest, slashed := strings.Cut(name, "/")
	switch {
	case slashed && ns == ".":
		return namespace + "/" + rest
	case slashed:
		return name
	}
	// The old form NAME.NAMESPACE.svc.DOMAIN, or a name of this namespace.
	first, rest, dotted := strings.Cut(name, ".")
	if !dotted {
		return namespace + "/" + name
	}
	second, _, _ := strings.Cut(rest, ".")
	return second + "/" + first
}

// unknownDelegates wants a delegate to exist and to have no hosts of its own.
func unknownDelegates(w *meshIndex, r *report) {
	have := map[string]*networking.VirtualService{}
	for o, vs := range specs[*networking.VirtualService](w) {
		have[o.Meta.Namespace+"/"+o.Meta.Name] = vs
	}
	for o, vs := range specs[*networking.VirtualService](w) {
		for i, route := range vs.Http {
			d := route.GetDelegate()
			if d == nil || len(vs.Hosts) == 0 {
				continue
			}
			ns := d.Namespace
			if ns == "" {
				ns = o.Meta.Namespace
			}
			at := place{o, fmt.Sprintf("spec.http[%d].delegate", i)}
			switch target := have[ns+"/"+d.Name]; {
			case target == nil:
				r.wrong(at, "there is no VirtualService %s/%s", ns, d.Name)
			case len(target.Hosts) > 0:
				r.wrong(at, "the VirtualService %s/%s has hosts, so no route can delegate to it; remove its hosts", ns, d.Name)
			}
		}
	}
}
