package xds

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// Unserved is an endpoint that clients call by mTLS, and at whose address nothing takes it: their requests
// are answered with 503.
type Unserved struct {
	// Key is that of the workload, or of the service in which the endpoint is written, and Origin where it
	// is from.
	Key    mesh.Key
	Origin string
	// Instance says that the workload is of Consul's catalog.
	Instance bool
	Service  mesh.Hostname
	Account  mesh.ServiceAccount
	Address  string
	Port     uint32
	// Proxy and Host are a connected proxy at that address; empty if none is connected.
	Proxy, Host string
	// Inbound is what that proxy accepts at the port, Listens whether it has any inbound listener.
	Inbound view.Inbound
	Listens bool
}

// neighbour is a connected proxy at some address.
type neighbour struct {
	name, host, network string
	router              bool
	view                *view.View
}

// Unserved lists such endpoints, sorted, of which a connected proxy has the address. Where no proxy is
// connected at an address, only a workload counts whose labels say that it has one: others may be those of
// hosts that have not joined yet.
func (s *Server) Unserved() []Unserved {
	snap := s.cfg.Snapshots.Snapshot()
	if snap == nil {
		return nil
	}
	states := map[*conn]*proxyState{}
	for _, c := range s.connections() {
		if o := c.current.Load(); o != nil && o.View != nil {
			states[c] = o
		}
	}
	last := s.unserved.last.Load()
	if last != nil && last.snap == snap && maps.Equal(last.states, states) {
		return last.list
	}
	if !s.unserved.finding.TryLock() {
		if last != nil {
			return last.list
		}
		s.unserved.finding.Lock()
	}
	defer s.unserved.finding.Unlock()
	next := &foundUnserved{snap, states, findUnserved(snap, states)}
	s.unserved.last.Store(next)
	return next.list
}

// unservedCache has what was found last. Others who ask while it is being found anew get that: with many
// views it takes a while, and metrics and /readyz should not wait for it.
type unservedCache struct {
	finding sync.Mutex // held while it is found anew
	last    atomic.Pointer[foundUnserved]
}

// foundUnserved is a list, and what it was found in. It is immutable.
type foundUnserved struct {
	snap   *mesh.Snapshot
	states map[*conn]*proxyState
	list   []Unserved
}

func findUnserved(snap *mesh.Snapshot, states map[*conn]*proxyState) []Unserved {
	var targets view.MTLSTargets
	at := map[string][]neighbour{}
	for c, o := range states {
		if !o.gone { // such a proxy is stale, and still listens with its last configuration
			targets.Add(o.View)
		}
		n := neighbour{name: c.name(), host: c.peer.Host, view: o.View}
		c.mu.Lock()
		n.network, n.router = c.proxy.Network, c.proxy.Type == view.Router
		for _, a := range c.proxy.Addresses {
			at[a] = append(at[a], n)
		}
		c.mu.Unlock()
	}
	var out []Unserved
	for t := range targets.All() {
		for _, u := range endpointsAt(snap, t) {
			if u.takesNone(at[t.Address]) {
				out = append(out, u.Unserved)
			}
		}
	}
	slices.SortFunc(out, func(a, b Unserved) int {
		return cmp.Or(a.Key.Compare(b.Key), strings.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port), strings.Compare(string(a.Service), string(b.Service)))
	})
	// Several services may have one port of a workload.
	return slices.CompactFunc(out, func(a, b Unserved) bool { return a.Key == b.Key && a.Address == b.Address && a.Port == b.Port })
}

// unservedEndpoint is an endpoint that is to be judged.
type unservedEndpoint struct {
	Unserved
	network  string
	declared bool
}

// endpointsAt are the endpoints at the address and port of a target: workloads, or what a service has
// written in it. A gateway of another network is none.
func endpointsAt(snap *mesh.Snapshot, t view.MTLSTarget) (out []unservedEndpoint) {
	endpoint := func(w *mesh.Workload, of *mesh.Meta) unservedEndpoint {
		return unservedEndpoint{
			Unserved: Unserved{
				Key: of.Key, Origin: of.Origin.String(), Instance: w.Labels[mesh.LabelConsulService] != "", Service: t.Service,
				Account: mesh.ServiceAccount{Namespace: of.Namespace, Name: w.ServiceAccount}, Address: t.Address, Port: t.Port,
			},
			network: w.Network, declared: view.DeclaresMTLS(w.Labels),
		}
	}
	serves := func(w *mesh.Workload, svc *mesh.Service) bool {
		return svc.Hostname == t.Service && slices.ContainsFunc(svc.Ports, func(p mesh.Port) bool { return w.PortFor(p) == t.Port })
	}
	for _, w := range snap.WorkloadsAt(t.Address) {
		if slices.ContainsFunc(snap.ServicesOf(w), func(svc *mesh.Service) bool { return serves(w, svc) }) {
			out = append(out, endpoint(w, &w.Meta))
		}
	}
	for _, svc := range snap.InlineAt(t.Address) {
		for _, w := range svc.Inline {
			if w.Address == t.Address && serves(w, svc) {
				out = append(out, endpoint(w, &svc.Meta))
				break
			}
		}
	}
	return out
}

// takesNone reports whether none of the proxies at the address takes mTLS at the port, and notes the one that is
// named.
func (u *unservedEndpoint) takesNone(at []neighbour) bool {
	for _, n := range at {
		if n.network != u.network {
			continue
		}
		if n.router { // what listens there is a matter of its Gateways
			return false
		}
		in, listens := n.view.InboundAt(u.Address, u.Port)
		if in == view.InboundMTLS {
			return false
		}
		if u.Proxy == "" || in > u.Inbound {
			u.Proxy, u.Host, u.Inbound, u.Listens = n.name, n.host, in, listens
		}
	}
	return u.Proxy != "" || u.declared
}
