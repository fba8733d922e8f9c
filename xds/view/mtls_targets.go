package view

import (
	"net/netip"
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// tlsModeIstio is the value of [tlsModeLabel] that says that a workload takes mTLS.
const tlsModeIstio = "istio"

// DeclaresMTLS reports whether labels say by themselves that the workload has a proxy that takes mTLS.
// A service account says that, too, but a workload may have one before its proxy is there.
func DeclaresMTLS(labels map[string]string) bool { return labels[tlsModeLabel] == tlsModeIstio }

// MTLSTarget is an address to which clients send mTLS of the mesh.
type MTLSTarget struct {
	Service mesh.Hostname
	Address string
	Port    uint32
}

// MTLSTargets collects the targets of views. Layers that several views share count once. The zero value is
// ready for use.
type MTLSTargets struct {
	seen map[[2]*Layer]bool
	set  map[MTLSTarget]bool
}

// Add adds the targets of a view. Endpoints that get no requests, because they are unhealthy, are none.
func (t *MTLSTargets) Add(v *View) {
	var clusters, endpoints *Layer
	for _, l := range v.Layers {
		switch l.Name {
		case ClustersLayer:
			clusters = l
		case EndpointsLayer:
			endpoints = l
		}
	}
	if clusters == nil || endpoints == nil || t.seen[[2]*Layer{clusters, endpoints}] {
		return
	}
	if t.seen == nil {
		t.seen, t.set = map[[2]*Layer]bool{}, map[MTLSTarget]bool{}
	}
	t.seen[[2]*Layer{clusters, endpoints}] = true
	mtls := map[ClusterRef]bool{}
	for _, p := range clusters.Parts {
		if c, ok := p.(*Cluster); ok && c.TLS != nil {
			mtls[c.Ref] = true
		}
	}
	for _, p := range endpoints.Parts {
		e, ok := p.(*Endpoints)
		if !ok || !mtls[e.Ref] {
			continue
		}
		for _, l := range e.Localities {
			for _, x := range l.Endpoints {
				if x.MTLS && !x.Unhealthy {
					t.set[MTLSTarget{e.Ref.Host, x.Address, x.Port}] = true
				}
			}
		}
	}
}

// All are the targets, in no order.
func (t *MTLSTargets) All() map[MTLSTarget]bool { return t.set }

// Inbound is whether the proxy of a view accepts connections at a port of its workload.
type Inbound int

// What a proxy accepts at a port.
const (
	// InboundNone: it has no listener there.
	InboundNone Inbound = iota
	// InboundPlaintext: it has a listener that does not take mTLS of the mesh.
	InboundPlaintext
	// InboundMTLS: it has a listener that takes mTLS of the mesh.
	InboundMTLS
)

// InboundAt says what the sidecar accepts at a port of one of its addresses; also whether it has any inbound
// listener at all. A listener at a loopback address does not get what clients send to another one.
func (v *View) InboundAt(address string, port uint32) (at Inbound, listens bool) {
	for _, layer := range v.Layers {
		if layer.Name != InboundLayer {
			continue
		}
		for _, p := range layer.Parts {
			l, ok := p.(*Listener)
			if !ok {
				continue
			}
			listens = true
			if l.OriginalDst || l.Port == port && slices.ContainsFunc(l.Addresses, func(bind string) bool { return !isLoopback(bind) || isLoopback(address) }) {
				at = max(at, l.inboundAt(port))
			}
		}
	}
	return at, listens
}

func isLoopback(address string) bool {
	ip, err := netip.ParseAddr(address)
	return err == nil && ip.IsLoopback()
}

// inboundAt is for a listener that gets the connections of that port. A chain for the port has
// precedence over those for all ports.
func (l *Listener) inboundAt(port uint32) Inbound {
	match := uint32(0)
	if slices.ContainsFunc(l.Chains, func(c *FilterChain) bool { return c.Match.DestinationPort == port }) {
		match = port
	}
	at := InboundNone
	for _, c := range l.Chains {
		switch {
		case c.Match.DestinationPort != match:
		case c.TLS != nil:
			return InboundMTLS
		default:
			at = InboundPlaintext
		}
	}
	return at
}
