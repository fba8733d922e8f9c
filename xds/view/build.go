package view

import (
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Build derives what the proxy sees of the mesh. To build many views of one snapshot, make
// an [Index] once.
func Build(s *mesh.Snapshot, p Proxy) *View { return NewIndex(s).Build(p) }

// Build derives what the proxy sees of the mesh.
func (x *Index) Build(p Proxy) *View { return x.Rebuild(nil, p) }

// Rebuild derives what a proxy sees whose previous view was prev, which may be nil. It
// returns prev itself if nothing in it differs. That costs next to nothing if no object
// changed on which the view depends.
func (x *Index) Rebuild(prev *View, p Proxy) *View {
	if prev == nil || prev.meshContext == nil || prev.meshContext.internPool != x.internPool {
		proxy := new(p)
		inputs := x.inputsOf(proxy)
		return x.assemble(&inputs, inputs.outbound.viewAt(x), proxy)
	}
	prev.mu.Lock()
	defer prev.mu.Unlock()
	inputs, proxy := prev.inputs, prev.proxy
	if now := proxy.reuseIfEqual(&p); now != proxy {
		proxy = now
		inputs = x.inputsOf(proxy)
	} else if prev.meshContext != x.meshContext || x.affects(prev.seq, proxy) {
		inputs = x.inputsOf(proxy)
	}
	out := inputs.outbound.viewAt(x)
	if inputs.own != prev.inputs.own || !out.equalLayers(prev.outbound) {
		return x.assemble(&inputs, out, proxy)
	}
	prev.meshContext, prev.seq, prev.proxy, prev.inputs, prev.outbound = x.meshContext, x.seq, proxy, inputs, out
	x.count.viewsKept.Add(1)
	return prev
}

// reuseIfEqual returns p if the other proxy is equal to it, else a copy of the other one.
func (p *Proxy) reuseIfEqual(o *Proxy) *Proxy {
	if bitwiseEqual(p, o) { // the usual case, without an allocation
		return p
	}
	if now := new(*o); !shallowEqual(p, now) {
		return now
	}
	return p
}

// viewInputs is what the view of a proxy is made from: its own layers, and the outbound state
// that it shares.
type viewInputs struct {
	own       stackInput
	outbound  *outboundState
	fallbacks []string
	served    []servedPort
}

func (x *Index) inputsOf(p *Proxy) viewInputs {
	pc := x.contextOf(*p)
	in := newInboundBuilder(pc)
	var gateway gatewayKey
	if p.Type == Router {
		gateway = pc.gatewayKeyOf(in.inboundInput)
	}
	own := stackInput{inbound: pc.inboundLayers.get(pc.meshContext, in.inboundInput)}
	if len(in.providers) > 0 {
		own.providers = x.layer(ProvidersLayer, in.providers)
	}
	return viewInputs{own: own, outbound: pc.outboundOf(in.reserved, gateway), fallbacks: pc.telemetry.fallbacks, served: in.served}
}

func (x *Index) assemble(inputs *viewInputs, out *outboundView, p *Proxy) *View {
	x.count.viewsBuilt.Add(1)
	return &View{
		Stack: out.stacks.get(out, inputs.own), Warnings: out.warnings, Fallbacks: inputs.fallbacks, Findings: out.findings,
		meshContext: x.meshContext, seq: x.seq, proxy: p, inputs: *inputs, outbound: out,
	}
}

// stackInput is what a proxy has besides its outbound view. Of a gateway, inbound has the extensions
// only. providers is nil for proxies that ask none.
type stackInput struct{ inbound, providers *Layer }

func (in stackInput) build(v *outboundView) *Stack {
	layers := []*Layer{v.clusters, v.endpoints, v.fixed}
	if v.names != nil {
		layers = append(layers, v.names)
	}
	if in.providers != nil {
		layers = append(layers, in.providers)
	}
	layers = slices.Concat(layers, []*Layer{v.listeners, in.inbound}, v.routeConfigurations)
	return &Stack{Layers: layers, hash: hashLayers(layers)}
}

// equalLayers reports whether two outbound views have equal content for a proxy.
func (v *outboundView) equalLayers(o *outboundView) bool {
	return v == o || shallowEqual(&v.upstreamLayers, &o.upstreamLayers) && shallowEqual(v.routingView, o.routingView)
}
