package view

import (
	"slices"
	"strings"

	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// authn finds the mTLS mode that PeerAuthentications require.
type authn struct {
	meshWide   *mesh.PeerAuthentication
	namespaces map[string]*namespaceAuthn
	defaults   *namespaceAuthn // for namespaces without a PeerAuthentication
}

// namespaceAuthn is what PeerAuthentications require in one namespace. If that changes,
// there is a new object.
type namespaceAuthn struct {
	mesh       mesh.MTLSMode
	meshOrigin *mesh.Origin
	own        *mesh.PeerAuthentication   // for the whole namespace; or nil
	selecting  []*mesh.PeerAuthentication // with a selector, oldest first
}

// peerPolicy is what applies to one workload.
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

func newAuthn(prev *authn, s *mesh.Snapshot) *authn {
	a := &authn{namespaces: map[string]*namespaceAuthn{}}
	of := func(ns string) *namespaceAuthn {
		if a.namespaces[ns] == nil {
			a.namespaces[ns] = &namespaceAuthn{}
		}
		return a.namespaces[ns]
	}
	for _, pa := range s.PeerAuthentications { // oldest first, and the oldest wins
		switch {
		case len(pa.Spec.GetSelector().GetMatchLabels()) > 0:
			if pa.Namespace != s.RootNamespace() {
				o := of(pa.Namespace)
				o.selecting = append(o.selecting, pa)
			}
		case pa.Namespace == s.RootNamespace():
			if a.meshWide == nil {
				a.meshWide = pa
			}
		default:
			if o := of(pa.Namespace); o.own == nil {
				o.own = pa
			}
		}
	}
	a.defaults = &namespaceAuthn{}
	if a.meshWide != nil {
		a.defaults.mesh, a.defaults.meshOrigin = modeOf(a.meshWide.Spec.GetMtls(), mesh.Permissive), a.meshWide.Origin
	}
	for ns, o := range a.namespaces {
		o.mesh, o.meshOrigin = a.defaults.mesh, a.defaults.meshOrigin
		if was := prev.namespaces[ns]; was != nil && shallowEqual(was, o) {
			a.namespaces[ns] = was
		}
	}
	if prev.defaults != nil && shallowEqual(prev.defaults, a.defaults) {
		a.defaults = prev.defaults
	}
	return a
}

// in returns what applies in a namespace.
func (a *authn) in(ns string) *namespaceAuthn {
	if o := a.namespaces[ns]; o != nil {
		return o
	}
	return a.defaults
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

// mode is the mode of workloads that no policy selects.
func (o *namespaceAuthn) mode() mesh.MTLSMode {
	if o.own != nil {
		return modeOf(o.own.Spec.GetMtls(), o.mesh)
	}
	return o.mesh
}

// forWorkload returns the policy of a workload: its own, else its namespace's, else the
// mesh's. Most labels of a catalog instance come from its registration, which must not
// lower the mode that applies without them.
func (o *namespaceAuthn) forWorkload(labels map[string]string) peerPolicy {
	p := o.selected(labels)
	if _, instance := labels[mesh.LabelConsulService]; !instance || len(o.selecting) == 0 {
		return p
	}
	return p.atLeast(o.selected(trustedLabels(labels)))
}

// trustedLabels are the labels of a catalog instance that do not come from its registration.
func trustedLabels(labels map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range labels {
		if strings.HasPrefix(k, mesh.LabelConsulPrefix) {
			out[k] = v
		}
	}
	return out
}

// atLeast is the stricter of two policies, for each port.
func (p peerPolicy) atLeast(o peerPolicy) peerPolicy {
	out := peerPolicy{mode: stricter(p.mode, o.mode), origins: p.origins}
	for _, origin := range o.origins {
		if !slices.Contains(out.origins, origin) {
			out.origins = append(out.origins, origin)
		}
	}
	for _, ports := range []map[uint32]mesh.MTLSMode{p.ports, o.ports} {
		for port := range ports {
			if out.ports == nil {
				out.ports = map[uint32]mesh.MTLSMode{}
			}
			out.ports[port] = stricter(p.forPort(port), o.forPort(port))
		}
	}
	return out
}

func stricter(a, b mesh.MTLSMode) mesh.MTLSMode {
	for _, mode := range []mesh.MTLSMode{mesh.Strict, mesh.Permissive} {
		if a == mode || b == mode {
			return mode
		}
	}
	return mesh.Disable
}

func (o *namespaceAuthn) selected(labels map[string]string) peerPolicy {
	p := peerPolicy{mode: o.mode()}
	p.origins = append(p.origins, o.meshOrigin)
	if o.own != nil {
		p.origins = append(p.origins, o.own.Origin)
	}
	for _, pa := range o.selecting {
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
