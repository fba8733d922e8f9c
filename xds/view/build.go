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
	st := x.site(p)
	var in *inbound
	var serves []listenerKey
	if p.Type != Router {
		in = newInbound(st)
		serves = in.serves
	}
	out := st.outboundOf(serves)
	v := &View{Warnings: out.warnings}
	v.Parts = append(v.Parts, out.clusters...)
	if in != nil {
		v.Parts = append(v.Parts, in.clusters()...)
	}
	v.Parts = append(v.Parts, out.listeners...)
	if in != nil {
		v.Parts = append(v.Parts, in.listeners()...)
	}
	v.Parts = append(v.Parts, out.tables...)
	h := sha256.New()
	for _, part := range v.Parts {
		sum := part.Hash()
		h.Write(sum[:])
	}
	h.Sum(v.Class[:0])
	return v
}
