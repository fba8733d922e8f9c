package view

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Name is what the proxy's agent answers for one host name (Istio's pkg/dns/server,
// BuildNameTable).
type Name struct {
	base

	// Host may have a wildcard as its first label. That of the whole table is [NameTable].
	Host mesh.Hostname
	// Whole says that no short form of the host stands for it.
	Whole bool
	// Addresses are IP addresses, in the order of the service.
	Addresses []string
	// Ports are for SRV records.
	Ports []NamePort
}

// NamePort is a port of a host name.
type NamePort struct {
	// Service is the name of the port, or its protocol if it has no name.
	Service string
	// UDP means that it is a port of UDP, not of TCP.
	UDP    bool
	Number uint32
}

// NameTable is the name of the part that every table of names has: with it, a table without
// hosts differs from a control plane that knows no names.
const NameTable mesh.Hostname = "."

// namesKey is everything within a scopeState that the names of a proxy depend on.
type namesKey struct {
	allocated bool   // it uses addresses that the control plane chose
	ipv6      bool   // it can reach IPv6
	loopback  bool   // it has services at addresses of the loopback interface
	domain    string // of its short names
}

// namesKeyOf is the key of a proxy that answers names.
func (pc *proxyContext) namesKeyOf() namesKey {
	_, ipv6 := pc.proxy.families()
	return namesKey{allocated: pc.proxy.Interception != InterceptNone, ipv6: ipv6, loopback: pc.access.loopback, domain: pc.domain}
}

func (k namesKey) build(*scopeState) *namesState { return &namesState{key: k} }

// namesState is the names that proxies of one scopeState share. Guarded by the scopeState's mu.
type namesState struct {
	key   namesKey
	layer *Layer // nil if it has to be built again
	// inputs are those of names, one for each service of the scope, in its order. A name is nil
	// if the service has no address.
	inputs []nameInput
	names  []*Name
}

// nameInput is everything that a name is made from.
type nameInput struct {
	namesKey
	svc   *mesh.Service
	whole bool // without short forms
	ports sliceRef[mesh.Port]
	// workloads are those of a service whose own addresses are answered: it has no other.
	workloads serviceWorkloads
}

// layerFor returns the names of a scope. Called with the scopeState's mu held.
func (n *namesState) layerFor(sc *sidecarScope) *Layer {
	if n.layer != nil {
		return n.layer
	}
	inputs, names := make([]nameInput, len(sc.services)), make([]*Name, len(sc.services))
	at := 0 // both lists are sorted by host
	parts := make([]Part, 1, len(names)+1)
	parts[0] = sc.names.intern(&Name{Host: NameTable})
	for i, svc := range sc.services {
		inputs[i] = n.inputOf(sc, svc)
		for at < len(n.inputs) && n.inputs[at].svc.Hostname < svc.Hostname {
			at++
		}
		if at < len(n.inputs) && n.inputs[at] == inputs[i] {
			names[i] = n.names[at]
		} else {
			names[i] = inputs[i].build(sc.internPool)
		}
		if names[i] != nil {
			parts = append(parts, names[i])
		}
	}
	parts = append(parts, n.shortNames(sc, inputs)...)
	n.inputs, n.names = inputs, names
	n.layer = sc.layer(NamesLayer, parts)
	return n.layer
}

// shortNames are names of their own for short forms of tenants' services that have not all of them: agents complete no
// short form to the host of such a service, see [Name.Whole].
func (n *namesState) shortNames(sc *sidecarScope, inputs []nameInput) (out []Part) {
	done := map[mesh.Hostname]bool{}
	add := func(h mesh.Hostname, in nameInput) {
		if name := in.buildAs(h, sc.internPool); name != nil && !done[h] {
			done[h] = true
			out = append(out, name)
		}
	}
	for _, in := range inputs {
		if !in.whole || in.svc.Hostname.IsWildcard() { // agents complete no wildcards
			continue
		}
		for _, kept := range in.svc.ShortNames(n.key.domain) {
			if h := mesh.Hostname(kept); sc.find(h) == nil {
				add(h, in)
			}
		}
	}
	// A lost one that a wildcard covers has the addresses of the wildcard's service. Agents of earlier releases look for
	// short forms before they look for wildcards, and know nothing of lost ones: they find these names first.
	for _, in := range inputs {
		if !in.whole {
			continue
		}
		for _, lost := range in.svc.LostShortNames(n.key.domain) {
			h := mesh.Hostname(lost)
			if i := sc.narrowestWildcard(h); i >= 0 && !h.IsWildcard() {
				add(h, inputs[i])
			}
		}
	}
	return out
}

// narrowestWildcard is the service of the narrowest wildcard that covers a host; -1 if there is none, or if a service
// has the host itself. There may be as many services as lost names.
func (sc *sidecarScope) narrowestWildcard(h mesh.Hostname) int {
	if sc.find(h) != nil {
		return -1
	}
	for i := range h { // what follows the star is compared as text: [mesh.Hostname.Covers]
		if found, is := slices.BinarySearchFunc(sc.services, "*"+h[i:], compareHosts); is {
			return found
		}
	}
	return -1
}

func (n *namesState) inputOf(sc *sidecarScope, svc *service) nameInput {
	in := nameInput{namesKey: n.key, svc: svc.Service, whole: svc.LacksShortNames(n.key.domain), ports: sliceRefOf(svc.Ports)}
	if svc.Resolution == mesh.ResolutionNone && len(svc.Addresses) == 0 {
		in.workloads = sc.workloadsOf(svc.Service)
	}
	return in
}

// build returns the name of a service; nil if there is nothing to answer, so that others are
// asked for it.
func (in nameInput) build(pool *internPool) *Name { return in.buildAs(in.svc.Hostname, pool) }

// buildAs is build for another name that is answered in the same way.
func (in nameInput) buildAs(host mesh.Hostname, pool *internPool) *Name {
	if host == "*" || strings.HasPrefix(string(host), ".") {
		return nil
	}
	addresses := in.svc.Addresses
	switch {
	case in.loopback && pool.settings.loopbackOf(in.svc) != nil:
		addresses = pool.settings.loopbackOf(in.svc)
	case len(addresses) > 0:
	case in.svc.Resolution == mesh.ResolutionNone:
		addresses = in.workloads.addresses()
	case in.allocated:
		addresses = in.svc.Allocated
	}
	n := &Name{Host: host, Whole: in.whole, Addresses: in.reachable(addresses)}
	if len(n.Addresses) == 0 {
		return nil
	}
	for _, p := range in.ports.items() {
		service := p.Name
		if service == "" {
			service = strings.ToLower(string(p.Protocol))
		}
		if service != "" {
			n.Ports = append(n.Ports, NamePort{Service: service, UDP: p.Protocol == mesh.UDP, Number: p.Number})
		}
	}
	n.origins = originsOf(in.svc.Origin)
	return pool.names.intern(n)
}

// reachable returns the addresses that are no CIDR blocks. Those of IPv6 are left out on a host
// without IPv6, unless there is no other.
func (in nameInput) reachable(list []string) []string {
	var all, v4 []string
	for _, text := range list {
		a, err := netip.ParseAddr(text)
		if err != nil || a.IsUnspecified() {
			continue
		}
		all = append(all, text)
		if a.Unmap().Is4() {
			v4 = append(v4, text)
		}
	}
	if in.ipv6 || len(v4) == 0 {
		return all
	}
	return v4
}

// addresses are those of the workloads that are not known to be unhealthy; all, if none is
// left. They are sorted.
func (b *serviceWorkloads) addresses() []string {
	var all, well []string
	for ; b != nil; b = b.next {
		for _, w := range b.workloads.items() {
			all = append(all, w.Address)
			if w.Health != mesh.Unhealthy {
				well = append(well, w.Address)
			}
		}
	}
	if len(well) == 0 {
		well = all
	}
	slices.Sort(well)
	return slices.Compact(well)
}
