package view

import (
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Build derives what the proxy sees of the mesh. Whoever builds many views of
// one snapshot makes an [Index] once.
func Build(s *mesh.Snapshot, p Proxy) *View { return NewIndex(s).Build(p) }

// Build derives what the proxy sees of the mesh.
func (x *Index) Build(p Proxy) *View { return x.Rebuild(nil, p) }

// Rebuild derives what a proxy sees that had prev before, which may be nil. It
// returns prev itself where nothing in it differs; where nothing that it depends
// on does, that costs next to nothing.
func (x *Index) Rebuild(prev *View, p Proxy) *View {
	if prev == nil || prev.epoch == nil || prev.epoch.lineage != x.lineage {
		who := new(p)
		at := x.place(who)
		return x.assemble(&at, at.out.at(x), who)
	}
	prev.mu.Lock()
	defer prev.mu.Unlock()
	at, who := prev.at, prev.proxy
	if now := who.or(&p); now != who {
		who = now
		at = x.place(who)
	} else if prev.epoch != x.epoch || x.concerns(prev.seq, who) {
		at = x.place(who)
	}
	out := at.out.at(x)
	if at.inbound != prev.at.inbound || !out.sameLayers(prev.out) {
		return x.assemble(&at, out, who)
	}
	prev.epoch, prev.seq, prev.proxy, prev.at, prev.out = x.epoch, x.seq, who, at, out
	x.count.viewsKept.Add(1)
	return prev
}

// or is the proxy itself if the other one is the same.
func (p *Proxy) or(o *Proxy) *Proxy {
	if identical(p, o) { // the usual case allocates nothing
		return p
	}
	if now := new(*o); !same(p, now) {
		return now
	}
	return p
}

// place is where in an Index a proxy is: what is its own, and what it shares.
type place struct {
	inbound *Layer // nil for routers
	out     *half
}

func (x *Index) place(p *Proxy) place {
	st := x.site(*p)
	if p.Type == Router {
		return place{out: st.outboundOf(nil)}
	}
	in := newInbound(st)
	return place{inbound: st.inbound.of(st.epoch, in.inbound), out: st.outboundOf(in.serves)}
}

func (x *Index) assemble(at *place, out *outboundView, p *Proxy) *View {
	x.count.viewsBuilt.Add(1)
	return &View{
		Stack: out.stacks.of(out, stackInput{at.inbound}), Warnings: out.warnings,
		epoch: x.epoch, seq: x.seq, proxy: p, at: *at, out: out,
	}
}

// stackInput is what a proxy has besides its outbound half: nil for routers.
type stackInput struct{ inbound *Layer }

func (in stackInput) build(v *outboundView) *Stack {
	layers := []*Layer{v.clusters, v.endpoints, v.fixed}
	if in.inbound != nil {
		layers = slices.Concat(layers, []*Layer{v.listeners, in.inbound}, v.tables)
	}
	return &Stack{Layers: layers, hash: hashLayers(layers)}
}

// sameLayers reports whether two outbound halves are the same to a proxy.
func (v *outboundView) sameLayers(o *outboundView) bool {
	return v == o || same(&v.serviceHalf, &o.serviceHalf) && same(v.routingView, o.routingView)
}
