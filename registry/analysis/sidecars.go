package analysis

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// egressHosts warns of a host that a Sidecar names and no service has: the proxy
// would not know the service that was meant.
func egressHosts(w *meshIndex, r *report) {
	if w.in.OtherSources {
		return
	}
	for o, spec := range specs[*networking.Sidecar](w) {
		for i, l := range spec.Egress {
			for j, h := range l.GetHosts() {
				ns, name, _ := strings.Cut(h, "/")
				if strings.HasPrefix(ns, "~") || name == "*" && (ns == "*" || ns == ".") {
					continue
				}
				if ns == "." {
					ns = o.Meta.Namespace
				}
				if w.imported(ns, mesh.Hostname(strings.ToLower(name)), o.Meta.Namespace) {
					continue
				}
				at := place{o, fmt.Sprintf("spec.egress[%d].hosts[%d]", i, j)}
				if found, _ := w.lookup(mesh.Hostname(name), o.Meta.Namespace); len(found) > 0 {
					r.warn(at, "the host is in namespace %q, not in %q; write %q", found[0].object.Meta.Namespace, ns, found[0].object.Meta.Namespace+"/"+name)
					continue
				}
				r.warn(at, "no service that is exported to namespace %q matches %q%s", o.Meta.Namespace, h, w.nearHost(mesh.Hostname(name)))
			}
		}
	}
}

// ingressBinds warns of an ingress listener without a bind for a host that has an address
// which others can reach: it listens there, and earlier releases listened at all addresses.
func ingressBinds(w *meshIndex, r *report) {
	for o, spec := range specs[*networking.Sidecar](w) {
		workloads := w.chosen(o, spec.GetWorkloadSelector().GetLabels()).workloads
		at := slices.IndexFunc(workloads, func(x *workload) bool {
			a, err := netip.ParseAddr(x.spec.GetAddress())
			return err == nil && a.IsGlobalUnicast()
		})
		if at < 0 {
			continue
		}
		for i, l := range spec.GetIngress() {
			if l.GetBind() == "" {
				r.warn(place{o, fmt.Sprintf("spec.ingress[%d]", i)}, "without capture, the listener is at the host's own address, for example %s:%d, as in Istio; "+
					"releases before this one listened at all addresses: write bind: 0.0.0.0 for that, or bind with the address",
					workloads[at].spec.GetAddress(), l.GetPort().GetNumber())
			}
		}
	}
}

// imported reports whether some service of namespace from, visible in namespace to,
// has a host that name covers.
func (w *meshIndex) imported(from string, name mesh.Hostname, to string) bool {
	for _, s := range w.services {
		if (from == "*" || s.object.Meta.Namespace == from) && s.exportedTo(to) && name.Overlaps(s.host) {
			return true
		}
	}
	return false
}
