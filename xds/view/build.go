package view

import (
	"crypto/sha256"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Build derives what the proxy sees of the mesh. Whoever builds many views of
// one snapshot makes an [Index] once.
func Build(s *mesh.Snapshot, p Proxy) *View { return NewIndex(s).Build(p) }

// Build derives what the proxy sees of the mesh.
func (x *Index) Build(p Proxy) *View {
	sc := newScope(x, p)
	v := &View{}
	v.Parts = append(sc.clusters(), sc.fixedClusters()...)
	if p.Type != Router { // gateways listen where Gateways say, which are not built yet
		in := newInbound(sc)
		v.Parts = append(v.Parts, in.clusters()...)
		listeners, tables := sc.outboundListeners(in.serves, &v.Warnings)
		v.Parts = append(v.Parts, listeners...)
		v.Parts = append(v.Parts, in.listeners()...)
		for _, name := range tables {
			if t := sc.routeTable(name); t != nil {
				v.Parts = append(v.Parts, t)
			}
		}
	}
	h := sha256.New()
	for _, part := range v.Parts {
		sum := part.Hash()
		h.Write(sum[:])
	}
	h.Sum(v.Class[:0])
	return v
}
