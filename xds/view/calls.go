package view

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// CannotCall reports whether nothing can call through the proxy, although in a mesh
// there are services for it to call: without capture, applications reach a proxy by its outbound
// listeners, and it has none. sidecar is the one that says so; nil if none selects the
// workload. It is not reported where a Sidecar wants it so ("~/*").
func (v *View) CannotCall(in *mesh.Snapshot) (cannot bool, sidecar *mesh.Sidecar) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.meshContext == nil || v.proxy.Type == Router || v.proxy.Interception != InterceptNone || len(v.outbound.listeners.Parts) > 0 {
		return false, nil
	}
	sidecar = v.inputs.outbound.scopeState.key.sidecar
	if sidecar != nil && wantsNoCalls(sidecar.Spec) {
		return false, nil
	}
	for _, s := range in.Services {
		own := len(s.Selector) > 0 && s.Namespace == v.proxy.ServiceAccount.Namespace && mesh.Selects(s.Selector, v.proxy.Labels)
		if !own {
			return true, sidecar
		}
	}
	return false, nil
}

// wantsNoCalls reports whether a Sidecar hides all services.
func wantsNoCalls(spec *networking.Sidecar) bool {
	return len(spec.GetEgress()) > 0 && !slices.ContainsFunc(spec.GetEgress(), func(l *networking.IstioEgressListener) bool {
		return slices.ContainsFunc(l.GetHosts(), func(h string) bool { return !strings.HasPrefix(h, "~/") })
	})
}

// CannotCallText says what [View.CannotCall] found, and what to do.
const CannotCallText = "nothing can call through this proxy: it has no outbound listener, and no capture; write a Sidecar with an egress listener " +
	"(port, bind and hosts) for what the workload calls, or hosts: [\"~/*\"] if it calls nothing"
