package analysis

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// portsNotServed warns of a port in a PeerAuthentication on which none of its
// workloads listens. Ports are those of the workload, not of the service.
func portsNotServed(w *meshIndex, r *report) {
	for o, spec := range specs[*security.PeerAuthentication](w) {
		if len(spec.PortLevelMtls) == 0 {
			continue
		}
		selected := w.chosen(o, spec.GetSelector().GetMatchLabels())
		if !selected.sure || len(selected.workloads) == 0 {
			continue
		}
		served := w.servedPorts(selected.workloads)
		for _, port := range slices.Sorted(maps.Keys(spec.PortLevelMtls)) {
			if len(served) == 0 || slices.Contains(served, port) {
				continue
			}
			text := make([]string, 0, len(served))
			for _, p := range served {
				text = append(text, strconv.FormatUint(uint64(p), 10))
			}
			r.warn(place{o, fmt.Sprintf("spec.portLevelMtls.%d", port)}, "no workload that this selects serves port %d; they serve %s (ports of the workload count here, not of the service)",
				port, strings.Join(text, ", "))
		}
	}
}

// servedPorts are the ports that services have of the workloads.
func (w *meshIndex) servedPorts(list []*workload) []uint32 {
	set := map[uint32]bool{}
	for _, x := range list {
		for _, s := range w.services {
			if s.object.Meta.Namespace != x.object.Meta.Namespace || s.spec.WorkloadSelector == nil ||
				!mesh.ServiceSelects(s.spec.WorkloadSelector.Labels, x.labels) {
				continue
			}
			for _, p := range s.spec.Ports {
				set[targetPort(p, x.spec)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// targetPort is where the workload serves a port of its service.
func targetPort(p *networking.ServicePort, e *networking.WorkloadEntry) uint32 {
	switch {
	case e.GetPorts()[p.GetName()] != 0:
		return e.Ports[p.GetName()]
	case p.GetTargetPort() != 0:
		return p.TargetPort
	}
	return p.GetNumber()
}
