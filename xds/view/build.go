package view

import (
	"crypto/sha256"
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Build derives what the proxy sees of the mesh. Whoever builds many views of
// one snapshot makes an [Index] once.
func Build(s *mesh.Snapshot, p Proxy) *View { return NewIndex(s).Build(p) }

// Build derives what the proxy sees of the mesh.
func (x *Index) Build(p Proxy) *View {
	st := x.site(p)
	v := &View{}
	if p.Type == Router {
		v.Parts = slices.Clone(st.outboundOf(nil).clusters)
	} else {
		in := newInbound(st)
		out := st.outboundOf(in.serves)
		v.Warnings = out.warnings
		v.Parts = slices.Concat(out.clusters, in.clusters(), out.listeners, in.listeners(), out.tables)
	}
	h := sha256.New()
	for _, part := range v.Parts {
		sum := part.Hash()
		h.Write(sum[:])
	}
	h.Sum(v.Class[:0])
	return v
}
