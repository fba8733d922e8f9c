package manifest

import (
	"fmt"

	networking "istio.io/api/networking/v1alpha3"
)

// warnAttached warns of a policy that is for gateways or services of Kubernetes only.
func warnAttached(o *Object, warnings *reporter) {
	spec, ok := o.Spec.(targeted)
	if !ok || !attached(spec) {
		return
	}
	field := "targetRefs"
	if len(spec.GetTargetRefs()) == 0 {
		field = "targetRef"
	}
	warnings.warn(CodeNotInForce, o.root.Nearest("spec."+field), "spec."+field, "the policy has no effect: as in Istio, "+field+
		" attaches it to gateways and services of Kubernetes, and never to a sidecar; to apply it to workloads, use a selector")
}

// warnGateway warns of what has no effect in a Gateway, as in Istio.
func warnGateway(o *Object, warnings *reporter) {
	spec, ok := o.Spec.(*networking.Gateway)
	if !ok {
		return
	}
	for i, s := range spec.GetServers() {
		if s.GetDefaultEndpoint() != "" {
			path := fmt.Sprintf("spec.servers[%d].defaultEndpoint", i)
			warnings.warn(CodeNotInForce, o.root.Nearest(path), path, "defaultEndpoint has no effect, as in Istio: VirtualServices say where requests go")
		}
	}
}
