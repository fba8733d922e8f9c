package view

import (
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// authn answers what PeerAuthentications demand.
type authn struct {
	mesh        mesh.MTLSMode
	meshOrigin  *mesh.Origin
	namespace   map[string]*mesh.PeerAuthentication
	withTargets map[string][]*mesh.PeerAuthentication // with a selector, by namespace, oldest first
}

// peerPolicy is what holds for one workload.
type peerPolicy struct {
	mode    mesh.MTLSMode
	ports   map[uint32]mesh.MTLSMode
	origins []*mesh.Origin
}

func (p *peerPolicy) forPort(port uint32) mesh.MTLSMode {
	if m, ok := p.ports[port]; ok {
		return m
	}
	return p.mode
}

func newAuthn(s *mesh.Snapshot) *authn {
	a := &authn{
		namespace:   map[string]*mesh.PeerAuthentication{},
		withTargets: map[string][]*mesh.PeerAuthentication{},
	}
	var meshWide *mesh.PeerAuthentication
	for _, pa := range s.PeerAuthentications { // oldest first, and the oldest wins
		switch {
		case len(pa.Spec.GetSelector().GetMatchLabels()) > 0:
			if pa.Namespace != s.RootNamespace() {
				a.withTargets[pa.Namespace] = append(a.withTargets[pa.Namespace], pa)
			}
		case pa.Namespace == s.RootNamespace():
			if meshWide == nil {
				meshWide = pa
			}
		case a.namespace[pa.Namespace] == nil:
			a.namespace[pa.Namespace] = pa
		}
	}
	if meshWide != nil {
		a.mesh = modeOf(meshWide.Spec.GetMtls(), mesh.Permissive)
		a.meshOrigin = meshWide.Origin
	}
	return a
}

func modeOf(m *security.PeerAuthentication_MutualTLS, unset mesh.MTLSMode) mesh.MTLSMode {
	switch m.GetMode() {
	case security.PeerAuthentication_MutualTLS_STRICT:
		return mesh.Strict
	case security.PeerAuthentication_MutualTLS_PERMISSIVE:
		return mesh.Permissive
	case security.PeerAuthentication_MutualTLS_DISABLE:
		return mesh.Disable
	case security.PeerAuthentication_MutualTLS_UNSET:
		return unset
	default:
		return unset
	}
}

// forNamespace is the mode of a namespace's workloads that no policy selects.
func (a *authn) forNamespace(ns string) mesh.MTLSMode {
	if pa := a.namespace[ns]; pa != nil {
		return modeOf(pa.Spec.GetMtls(), a.mesh)
	}
	return a.mesh
}

// forWorkload is the policy of a workload: its own, then its namespace's, then
// the mesh's.
func (a *authn) forWorkload(ns string, labels map[string]string) peerPolicy {
	p := peerPolicy{mode: a.forNamespace(ns)}
	p.origins = append(p.origins, a.meshOrigin)
	if pa := a.namespace[ns]; pa != nil {
		p.origins = append(p.origins, pa.Origin)
	}
	for _, pa := range a.withTargets[ns] {
		if !mesh.Selects(pa.Spec.GetSelector().GetMatchLabels(), labels) {
			continue
		}
		p.mode = modeOf(pa.Spec.GetMtls(), p.mode)
		p.origins = append(p.origins, pa.Origin)
		for port, m := range pa.Spec.GetPortLevelMtls() {
			if p.ports == nil {
				p.ports = map[uint32]mesh.MTLSMode{}
			}
			p.ports[port] = modeOf(m, p.mode)
		}
		break
	}
	return p
}
