package view

import "github.com/fairlead/fairlead/registry/mesh"

// IdleIngressTLS is an ingress listener of a Sidecar with tls that has no effect: a workload of it has mTLS of
// the mesh at that port.
type IdleIngressTLS struct {
	Sidecar *mesh.Sidecar
	// Listener is the number of the listener in ingress.
	Listener int
	Workload *mesh.Workload
	Mode     mesh.MTLSMode
}

// IdleIngressTLS returns such listeners, each once with the first workload, in the order of workloads.
func (x *Index) IdleIngressTLS() (out []IdleIngressTLS) {
	type listener struct {
		*mesh.Sidecar
		number int
	}
	seen := map[listener]bool{}
	for _, w := range x.s.Workloads {
		sidecar := x.sidecars.find(&Proxy{Type: Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: w.Namespace}, Labels: w.Labels})
		if sidecar == nil {
			continue
		}
		policy := x.authn.in(w.Namespace).forWorkload(w.Labels)
		for i, l := range sidecar.Spec.GetIngress() {
			mode := policy.forPort(l.GetPort().GetNumber())
			if l.GetTls() == nil || mode == mesh.Disable || seen[listener{sidecar, i}] {
				continue
			}
			seen[listener{sidecar, i}] = true
			out = append(out, IdleIngressTLS{Sidecar: sidecar, Listener: i, Workload: w, Mode: mode})
		}
	}
	return out
}
