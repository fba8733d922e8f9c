package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/internal/nearname"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Explanation is what a person has to know of a [Finding].
type Explanation struct {
	// Key and Origin are of the object to look at, which of a delegate is the delegate. Origin is nil if
	// the object is not there any more.
	Key    mesh.Key
	Origin *mesh.Origin
	// Text says what is wrong, Action what to do.
	Text, Action string
}

// maxNearNames bounds how many names a suggestion is looked for among.
const maxNearNames = 10_000

// Explain says what is wrong, in the mesh of a snapshot.
func (f Finding) Explain(s *mesh.Snapshot) Explanation {
	out := Explanation{Key: f.Object}
	if at := f.written(s); at != nil {
		out.Key, out.Origin = at.Key, at.Origin
	}
	switch f.Kind {
	case LeftOutDelegate:
		out.Text, out.Action = f.explainExcluded(s)
	case LeftOutServer:
		out.Text = fmt.Sprintf("the server %q on port %d is left out, and nothing that is meant for it is served: %s%s", f.Server, f.ListensAt, f.Reason, f.because(s))
		if f.Lost != "" {
			out.Text = fmt.Sprintf("the server %q on port %d serves only some of its names, and nothing that is meant for %s: %s%s", f.Server, f.ListensAt, f.Lost, f.Reason, f.because(s))
		}
		out.Action = "give the server a port and hosts of its own, or remove one of the two" + f.toComeFirst(s)
		if f.Other == (mesh.Key{}) { // no other server is in its way: Envoy may not have the port
			out.Action = "give the server one of these ports, or run Envoy with CAP_NET_BIND_SERVICE, as the agent's unit does"
		}
	case NoEndpoints:
		out.Text = fmt.Sprintf("sends requests to %s, which has no endpoint: %s; these requests fail", f.destination(), f.whyEmpty(s))
		out.Action = "correct the labels, start a workload that has them, or remove the route (or give it the weight 0)"
	case NoDestination:
		out.Text = "sends requests to " + f.destination() + ", " + f.whyMissing(s) + "; these requests fail"
		out.Action = "correct the destination, or add what it names"
		if f.Port != 0 {
			out.Action = fmt.Sprintf("correct the destination; if it names no port, write one: requests that come to port %d go to that port of the destination otherwise", f.Port)
		}
	}
	return out
}

// because names the Gateway that has what another one wants, and why it comes first.
func (f Finding) because(s *mesh.Snapshot) string {
	if f.Other == (mesh.Key{}) {
		return ""
	}
	first, object := findGateway(s, f.Other), findGateway(s, f.Object)
	if first == nil || object == nil {
		return fmt.Sprintf(" (%s)", f.Other)
	}
	return fmt.Sprintf(" (%s, %s%s)", first.Key, first.Origin, first.WhyFirst(object))
}

// toComeFirst is the line that turns the order of two Gateways.
func (f Finding) toComeFirst(s *mesh.Snapshot) string {
	first, object := findGateway(s, f.Other), findGateway(s, f.Object)
	if first == nil || object == nil {
		return ""
	}
	if line := object.ToComeFirst(first, s.Gateways); line != "" {
		return "; if it is to be served instead, " + line
	}
	return ""
}

func findGateway(s *mesh.Snapshot, key mesh.Key) *mesh.Gateway {
	if i := slices.IndexFunc(s.Gateways, func(g *mesh.Gateway) bool { return g.Key == key }); i >= 0 {
		return s.Gateways[i]
	}
	return nil
}

// written is the object that has the fault: of a VirtualService that delegates, the delegate, if it names
// the destination. nil if it is not there any more.
func (f Finding) written(s *mesh.Snapshot) *mesh.Meta {
	switch f.Object.Kind {
	case mesh.KindGateway:
		return findMeta(s.Gateways, f.Object, func(g *mesh.Gateway) *mesh.Meta { return &g.Meta })
	case mesh.KindSidecar:
		return findMeta(s.Sidecars, f.Object, func(c *mesh.Sidecar) *mesh.Meta { return &c.Meta })
	default:
	}
	var root *mesh.VirtualService
	for _, vs := range s.VirtualServices {
		if vs.Key == f.Object {
			root = vs
		}
	}
	if root == nil {
		return nil
	}
	if f.Kind == LeftOutDelegate || f.namedBy(root) {
		return &root.Meta
	}
	for _, r := range root.Spec.GetHttp() {
		d := r.GetDelegate()
		if d == nil {
			continue
		}
		ns := cmp.Or(d.GetNamespace(), root.Namespace)
		for _, vs := range s.VirtualServices {
			if vs.Namespace == ns && vs.Name == d.GetName() && len(vs.Spec.GetHosts()) == 0 && f.namedBy(vs) {
				return &vs.Meta
			}
		}
	}
	return &root.Meta
}

func findMeta[T any](list []T, key mesh.Key, meta func(T) *mesh.Meta) *mesh.Meta {
	for _, o := range list {
		if m := meta(o); m.Key == key {
			return m
		}
	}
	return nil
}

// namedBy reports whether a route of the VirtualService itself names the destination.
func (f Finding) namedBy(vs *mesh.VirtualService) bool {
	is := func(d *networking.Destination) bool { return lower(d.GetHost()) == f.Host && d.GetSubset() == f.Subset }
	for _, r := range vs.Spec.GetHttp() {
		if slices.ContainsFunc(r.GetRoute(), func(d *networking.HTTPRouteDestination) bool { return is(d.GetDestination()) }) {
			return true
		}
	}
	l4 := func(list []*networking.RouteDestination) bool {
		return slices.ContainsFunc(list, func(d *networking.RouteDestination) bool { return is(d.GetDestination()) })
	}
	return slices.ContainsFunc(vs.Spec.GetTcp(), func(r *networking.TCPRoute) bool { return l4(r.GetRoute()) }) ||
		slices.ContainsFunc(vs.Spec.GetTls(), func(r *networking.TLSRoute) bool { return l4(r.GetRoute()) })
}

// destination is what the finding is about.
func (f Finding) destination() string {
	out := fmt.Sprintf("the host %q", f.Host)
	if f.Port != 0 {
		out = fmt.Sprintf("port %d of ", f.Port) + out
	}
	if f.Subset != "" {
		out = fmt.Sprintf("the subset %q of ", f.Subset) + out
	}
	return out
}

// whyMissing says why proxies do not have the cluster.
func (f Finding) whyMissing(s *mesh.Snapshot) string {
	services := s.ServicesOn(f.Host)
	if len(services) == 0 {
		names := make([]mesh.Hostname, 0, min(len(s.Services), maxNearNames))
		for _, svc := range s.Services[:min(len(s.Services), maxNearNames)] {
			names = append(names, svc.Hostname)
		}
		return "which does not exist" + nearname.Of(string(f.Host), names)
	}
	at := fmt.Sprintf("%s, %s", services[0].Key, services[0].Origin)
	if f.Port == 0 && f.Subset == "" {
		return fmt.Sprintf("which these proxies do not see: exportTo hides it (%s)", at)
	}
	if services[0].Resolution == mesh.ResolutionDynamicDNS {
		return fmt.Sprintf("which has resolution DYNAMIC_DNS: it has no subsets, and gateways do not use it (%s)", at)
	}
	if f.Port != 0 {
		var ports []string
		for _, svc := range services {
			for _, p := range svc.Ports {
				if p.Number == f.Port && p.Protocol != mesh.UDP {
					return fmt.Sprintf("which these proxies do not have (%s)", at)
				}
				if p.Protocol != mesh.UDP {
					ports = append(ports, strconv.FormatUint(uint64(p.Number), 10))
				}
			}
		}
		return fmt.Sprintf("which has no such port; it has %s (%s)", cmp.Or(strings.Join(ports, ", "), "none"), at)
	}
	var names []string
	for _, dr := range s.DestinationRules {
		if mesh.Hostname(dr.Spec.GetHost()).Covers(f.Host) {
			for _, x := range dr.Spec.GetSubsets() {
				names = append(names, x.GetName())
			}
		}
	}
	switch {
	case slices.Contains(names, f.Subset):
		return "which is in no DestinationRule that these proxies use for the host"
	case len(names) == 0:
		return "which does not exist: no DestinationRule of the host has subsets"
	default:
		slices.Sort(names)
		return fmt.Sprintf("which does not exist%s; DestinationRules of the host have %s", nearname.Of(f.Subset, names), strings.Join(slices.Compact(names), ", "))
	}
}

// whyEmpty says why there is no endpoint.
func (f Finding) whyEmpty(s *mesh.Snapshot) string {
	services := s.ServicesOn(f.Host)
	if len(services) == 0 {
		return "nothing is behind it"
	}
	svc := services[0]
	if f.Subset != "" && len(s.EndpointsOf(svc)) > 0 {
		for _, dr := range s.DestinationRules {
			for _, x := range dr.Spec.GetSubsets() {
				if x.GetName() == f.Subset && mesh.Hostname(dr.Spec.GetHost()).Covers(f.Host) {
					return fmt.Sprintf("no workload of the host has the labels %s of the subset (%s, %s)%s", labelText(x.GetLabels()), dr.Key, dr.Origin, nearLabels(s.EndpointsOf(svc), x.GetLabels()))
				}
			}
		}
		return "no workload of the host has the labels of the subset"
	}
	switch {
	case svc.Catalog:
		return "no instance of it is in Consul's catalog"
	case len(svc.Selector) > 0:
		return fmt.Sprintf("no workload of namespace %q has the labels %s, which it selects (%s, %s)%s",
			svc.Namespace, labelText(svc.Selector), svc.Key, svc.Origin, nearLabels(s.WorkloadsIn(svc.Namespace), svc.Selector))
	default:
		return fmt.Sprintf("it lists none that can be used (%s, %s)", svc.Key, svc.Origin)
	}
}

func labelText(labels map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, k+"="+labels[k])
	}
	return strings.Join(out, ",")
}

// nearLabels suggests the value that some workload has for one of the labels.
func nearLabels(list []*mesh.Workload, labels map[string]string) string {
	for _, w := range list[:min(len(list), maxNearNames)] {
		for _, k := range slices.Sorted(maps.Keys(labels)) {
			if have := w.Labels[k]; nearname.Slip(labels[k], have) {
				return fmt.Sprintf(" (did you mean %q?)", k+"="+have)
			}
		}
	}
	return ""
}
