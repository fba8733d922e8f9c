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
		out := st.outboundOf(nil)
		v.Layers = []*Layer{out.clusters, out.endpoints, out.fixed}
	} else {
		in := newInbound(st)
		out := st.outboundOf(in.serves)
		v.Warnings = out.warnings
		inbound := newLayer(InboundLayer, append(in.clusters(), in.listeners()...))
		v.Layers = slices.Concat([]*Layer{out.clusters, out.endpoints, out.fixed, out.listeners, inbound}, out.tables)
	}
	h := sha256.New()
	for _, l := range v.Layers {
		h.Write(l.hash[:])
	}
	h.Sum(v.Class[:0])
	return v
}

// Rebuild derives what a proxy sees that had prev before, which may be nil. It
// returns prev itself where nothing in it differs.
func (x *Index) Rebuild(prev *View, p Proxy) *View {
	v := x.Build(p)
	if prev == nil || prev.Class != v.Class || !slices.EqualFunc(prev.Warnings, v.Warnings, sameWarning) {
		return v
	}
	return prev
}

// sameWarning compares origins by where they are: they move.
func sameWarning(a, b Warning) bool {
	return a.Key == b.Key && a.Message == b.Message && a.Origin.String() == b.Origin.String()
}
