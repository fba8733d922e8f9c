package analysis

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// gatewayObject is a Gateway that is in force.
type gatewayObject struct {
	*mesh.Gateway
	object *manifest.Object
}

// gateways checks which servers of Gateways are left out because of others, and which VirtualServices they
// have no host for.
func gateways(w *meshIndex, r *report) {
	var all []gatewayObject
	for o := range specs[*networking.Gateway](w) {
		if f := o.Fragment(); f != nil && len(f.Gateways) > 0 {
			g := f.Gateways[0]
			if i := slices.IndexFunc(w.in.Gateways, func(x *mesh.Gateway) bool { return x.Key == g.Key }); i >= 0 {
				g = w.in.Gateways[i]
			}
			all = append(all, gatewayObject{g, o})
		}
	}
	slices.SortFunc(all, func(a, b gatewayObject) int { return mesh.CompareGateways(a.Gateway, b.Gateway) })
	serversLeftOut(w, r, all)
	r.under(CodeGatewayHosts, func(r *report) { boundHosts(w, r, all) })
	r.under(CodeSelectsNothing, func(r *report) { gatewaySelectors(w, r, all) })
}

// gatewayHost is what says which Gateways a host has.
type gatewayHost struct {
	namespace string
	labels    map[string]string
}

// reaches reports whether a gateway host has a Gateway, as package view decides it.
func (w *meshIndex) reaches(g gatewayObject, h gatewayHost) bool {
	return mesh.Selects(g.Spec.GetSelector(), h.labels) && (g.Namespace == h.namespace || !slices.Contains(w.in.Bound, g.Namespace))
}

// serversLeftOut merges Gateways as each workload has them, and as one would that is in the namespace of a
// Gateway and has exactly the labels of its selector.
func serversLeftOut(w *meshIndex, r *report, all []gatewayObject) {
	objects := map[*mesh.Gateway]*manifest.Object{}
	every := make([]*mesh.Gateway, 0, len(all))
	hosts := map[string]gatewayHost{}
	add := func(h gatewayHost) { hosts[h.namespace+" "+labelText(h.labels)] = h }
	for _, g := range all {
		objects[g.Gateway], every = g.object, append(every, g.Gateway)
		add(gatewayHost{g.Namespace, g.Spec.GetSelector()})
	}
	for o, spec := range specs[*networking.WorkloadEntry](w) {
		if len(all) > 0 && o.Valid {
			add(gatewayHost{o.Meta.Namespace, spec.GetLabels()})
		}
	}
	type finding struct {
		server *networking.Server
		kept   *networking.Server
	}
	seen := map[finding]bool{}
	for _, text := range slices.Sorted(maps.Keys(hosts)) {
		var list []*mesh.Gateway
		for _, g := range all {
			if w.reaches(g, hosts[text]) {
				list = append(list, g.Gateway)
			}
		}
		for _, x := range mesh.MergeGateways(list, nil).Rejected {
			if f := (finding{x.Server.Server, x.Kept.Server}); seen[f] {
				continue
			} else {
				seen[f] = true
			}
			i := slices.Index(x.Server.Gateway.Spec.GetServers(), x.Server.Server)
			kept, cure := x.Kept.Gateway, ""
			if line := x.Server.Gateway.ToComeFirst(kept, every); line != "" {
				cure = "; if it is to be served instead, " + line
			}
			r.warn(place{objects[x.Server.Gateway], fmt.Sprintf("spec.servers[%d]", i)}, "this server is left out at port %d: %s (server %q of %s, %s%s)%s",
				x.Server.ListensAt, x.Reason, cmp.Or(x.Kept.GetName(), x.Kept.GetPort().GetName()), kept.Key, kept.Origin, kept.WhyFirst(x.Server.Gateway), cure)
		}
	}
}

// boundHosts warns of VirtualServices that have no host in common with a Gateway that they name.
func boundHosts(w *meshIndex, r *report, all []gatewayObject) {
	byName := map[string]gatewayObject{}
	for _, g := range all {
		byName[g.Namespace+"/"+g.Name] = g
	}
	for o, vs := range specs[*networking.VirtualService](w) {
		for i, name := range vs.Gateways {
			g, ok := byName[gatewayRef(name, o.Meta.Namespace)]
			if !ok || name == meshGateway || len(vs.Hosts) == 0 {
				continue
			}
			var hosts []mesh.Hostname
			for _, h := range vs.Hosts {
				hosts = append(hosts, w.fqdn(h, o.Meta.Namespace))
			}
			if !slices.ContainsFunc(g.Spec.GetServers(), func(s *networking.Server) bool {
				return len(mesh.CommonHosts(mesh.NewGatewayServer(g.Gateway, s, nil).HostsFor(o.Meta.Namespace), hosts)) > 0
			}) {
				r.warn(place{o, fmt.Sprintf("spec.gateways[%d]", i)}, "no server of the Gateway %q has one of these hosts for VirtualServices of namespace %s, so nothing is routed there: add one to its hosts",
					g.Namespace+"/"+g.Name, o.Meta.Namespace)
			}
		}
	}
}

// gatewaySelectors warns of a Gateway for no workload.
func gatewaySelectors(w *meshIndex, r *report, all []gatewayObject) {
	if w.in.OtherSources {
		return
	}
	for _, g := range all {
		labels := g.Spec.GetSelector()
		bound := slices.Contains(w.in.Bound, g.Namespace)
		found := len(labels) == 0 && !bound
		for o, spec := range specs[*networking.WorkloadEntry](w) {
			found = found || o.Valid && w.reaches(g, gatewayHost{o.Meta.Namespace, spec.GetLabels()})
		}
		for o, spec := range specs[*networking.WorkloadGroup](w) {
			found = found || o.Valid && w.reaches(g, gatewayHost{o.Meta.Namespace, spec.GetTemplate().GetLabels()})
		}
		whose := "of the mesh"
		if bound {
			whose = "of namespace " + g.Namespace + ", to which its source is bound,"
		}
		switch at := (place{g.object, "spec.selector"}); {
		case found:
		case len(labels) == 0:
			r.warn(at, "there is no workload %s so no gateway has these servers", whose)
		default:
			r.warn(at, "no workload %s has the labels %s, so no gateway has these servers", whose, strings.TrimSpace(labelText(labels)))
		}
	}
}
