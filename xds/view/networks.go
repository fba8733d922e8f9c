package view

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// networkTable says in which network an endpoint is, and through which gateways other networks
// reach it. It is immutable.
type networkTable struct {
	// Ranges are sorted by their first address; none overlaps another.
	Ranges []networkRange
	// Registries are the networks of whole sources, by the name of the source.
	Registries map[string]string
	// Gateways are those of each network that has some, sorted, each once.
	Gateways map[string][]networkGateway
	// Scale is what weights are multiplied with, so that they can be divided among the gateways
	// of any network.
	Scale uint32
}

// networkRange is a range of addresses, both as [sortedAddress].
type networkRange struct{ First, Last, Network string }

func newNetworkRange(p netip.Prefix, network string) networkRange {
	last := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < p.Addr().BitLen(); i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	return networkRange{sortedAddress(p.Masked().Addr()), sortedAddress(end), network}
}

// sortedAddress is a text that compares as the address does among those of its family, and lies in no
// range of the other family.
func sortedAddress(a netip.Addr) string {
	family := "6"
	if a.Is4() {
		family = "4"
	}
	return family + string(a.AsSlice())
}

// networkGateway is an address at which a network is reached.
type networkGateway struct {
	Address string // an IP address
	Port    uint32
}

func compareGateways(a, b networkGateway) int {
	return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port))
}

// maxScale bounds Scale: with more gateways than that takes, weights are divided with a rest.
const maxScale = 1 << 16

// networksAfter is the table of the index; nil if there are no networks.
func (x *Index) networksAfter(prev *Index) *networkTable {
	if x.s.MeshNetworks == nil {
		return nil
	}
	if x.s.MeshNetworks == prev.s.MeshNetworks && !namesServices(x.s.MeshNetworks.Spec) {
		return prev.networks
	}
	return x.networkTables.intern(*newNetworkTable(x.s))
}

// namesServices reports whether some gateway is a service of the mesh.
func namesServices(spec *meshconfig.MeshNetworks) bool {
	for _, n := range spec.GetNetworks() {
		if slices.ContainsFunc(n.GetGateways(), func(g *meshconfig.Network_IstioNetworkGateway) bool { return g.GetRegistryServiceName() != "" }) {
			return true
		}
	}
	return false
}

// maxGateways is how many gateways of a network are used, where a service of the mesh has more: each is
// an endpoint of each service in the network.
const maxGateways = 64

func newNetworkTable(s *mesh.Snapshot) *networkTable {
	t := &networkTable{Registries: map[string]string{}, Gateways: map[string][]networkGateway{}}
	networks := s.MeshNetworks.Spec.GetNetworks()
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		n := networks[name]
		for _, e := range n.GetEndpoints() {
			if p, err := mesh.ParseRange(e.GetFromCidr()); err == nil {
				t.Ranges = append(t.Ranges, newNetworkRange(p, name))
			}
			if r := e.GetFromRegistry(); r != "" {
				t.Registries[r] = name
			}
		}
		var list []networkGateway
		for _, g := range n.GetGateways() {
			usable, _ := gatewaysOf(s, g)
			list = append(list, usable...)
		}
		slices.SortFunc(list, compareGateways)
		if list = slices.Compact(list); len(list) > 0 {
			t.Gateways[name] = list[:min(len(list), maxGateways)]
		}
	}
	t.sortRanges()
	t.Scale = scaleOf(t.Gateways)
	return t
}

// gatewaysOf are the addresses of a gateway of MeshNetworks, or why it has none.
func gatewaysOf(s *mesh.Snapshot, g *meshconfig.Network_IstioNetworkGateway) (list []networkGateway, why string) {
	if g.GetRegistryServiceName() != "" {
		return serviceGateways(s, g.GetRegistryServiceName(), g.GetPort())
	}
	a, err := netip.ParseAddr(g.GetAddress())
	if err != nil {
		return nil, fmt.Sprintf("address %s: the name has no known address", g.GetAddress())
	}
	return []networkGateway{{a.String(), g.GetPort()}}, ""
}

// serviceGateways are the workloads of a service as gateways of a network. Those that are not well
// count only if no other is left. They get all requests for the network, so the service is found
// as that of an extension provider is: one that a tenant declares does not count, unless its
// namespace is written.
func serviceGateways(s *mesh.Snapshot, name string, port uint32) (list []networkGateway, why string) {
	plain, dotted := strings.CutSuffix(name, ".")
	svc, p, err := s.ProviderService(plain, port)
	if err != nil && dotted {
		svc, p, err = s.ProviderService(name, port) // the host may be written with the dot, too
	}
	if err != nil {
		_, why, _ := strings.Cut(err.Error(), ": ")
		return nil, fmt.Sprintf("registryServiceName %s: %s", name, why)
	}
	var well, rest []networkGateway
	for _, w := range s.EndpointsOf(svc) {
		a, err := netip.ParseAddr(w.Address)
		switch {
		case err != nil:
		case w.Health == mesh.Unhealthy || w.Health == mesh.Silent:
			rest = append(rest, networkGateway{a.String(), w.PortFor(p)})
		default:
			well = append(well, networkGateway{a.String(), w.PortFor(p)})
		}
	}
	if len(well) == 0 && len(rest) == 0 {
		return nil, fmt.Sprintf("registryServiceName %s: the service has no workload with an IP address", name)
	}
	if len(well) == 0 {
		return rest, ""
	}
	return well, ""
}

// sortRanges sorts the ranges, and leaves out those that lie in another one of the same network.
func (t *networkTable) sortRanges() {
	slices.SortFunc(t.Ranges, func(a, b networkRange) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(b.Last, a.Last), cmp.Compare(a.Network, b.Network))
	})
	out := t.Ranges[:0]
	for _, r := range t.Ranges {
		if n := len(out); n == 0 || out[n-1].Last < r.First {
			out = append(out, r)
		}
	}
	t.Ranges = out
}

// scaleOf is the least common multiple of the numbers of gateways.
func scaleOf(gateways map[string][]networkGateway) uint32 {
	scale := 1
	for _, list := range gateways {
		n := len(list)
		a, b := scale, n
		for b != 0 {
			a, b = b, a%b
		}
		if scale = scale / a * n; scale > maxScale {
			return maxScale
		}
	}
	return uint32(scale)
}

// scale is what weights are to be multiplied with.
func (t *networkTable) scale() uint32 {
	if t == nil {
		return 1
	}
	return t.Scale
}

// of is the network of a workload; "" if that is not known.
func (t *networkTable) of(w *mesh.Workload) string {
	if named := cmp.Or(w.Network, w.Labels[labelNetwork]); named != "" || t == nil {
		return named
	}
	if n := t.Registries[cmp.Or(w.Labels[mesh.LabelConsulDatacenter], mesh.ClusterID)]; n != "" {
		return n
	}
	if len(t.Ranges) == 0 {
		return ""
	}
	a, err := netip.ParseAddr(w.Address)
	if err != nil {
		return ""
	}
	at := sortedAddress(a.Unmap())
	i, found := slices.BinarySearchFunc(t.Ranges, at, func(r networkRange, at string) int { return cmp.Compare(r.First, at) })
	if !found {
		i--
	}
	if i < 0 || t.Ranges[i].Last < at {
		return ""
	}
	return t.Ranges[i].Network
}

// some reports whether some workload of a service is in a network with a property.
func (t *networkTable) some(b *serviceWorkloads, is func(network string) bool) bool {
	for ; b != nil && b.service != nil; b = b.next {
		for _, w := range b.workloads.items() {
			if is(t.of(w)) {
				return true
			}
		}
	}
	return false
}

// networkFamily is the IP family that gateways of networks must have for a proxy.
type networkFamily uint8

const (
	anyFamily networkFamily = iota
	onlyIPv4
	onlyIPv6
)

// accepts reports whether a proxy can reach an address.
func (f networkFamily) accepts(address string) bool {
	a, err := netip.ParseAddr(address)
	return f == anyFamily || err == nil && a.Unmap().Is4() == (f == onlyIPv4)
}

// familyOf is the family of a proxy, if it can not reach all gateways.
func (t *networkTable) familyOf(p *Proxy) networkFamily {
	v4, v6 := p.families()
	if v4 == v6 {
		return anyFamily
	}
	family := onlyIPv4
	if v6 {
		family = onlyIPv6
	}
	for _, list := range t.Gateways {
		if slices.ContainsFunc(list, func(g networkGateway) bool { return !family.accepts(g.Address) }) {
			return family
		}
	}
	return anyFamily
}

// networksFor is the table, if a workload of the service is in a network. Endpoints outside the mesh
// take no mTLS, so no gateway leads to them: those are in no network that is not written at them.
func (x *Index) networksFor(b *serviceWorkloads) *networkTable {
	if x.networks == nil {
		return nil
	}
	known := x.networks
	if b.service != nil && b.service.External {
		known = nil
	}
	if known.some(b, func(network string) bool { return network != "" }) {
		return x.networks
	}
	return nil
}

// isByNetwork reports whether the endpoints of a service depend on the network of the proxy.
func (in *serviceInput) isByNetwork() bool {
	return in.networks != nil && in.networks.some(&in.workloads, func(network string) bool { return len(in.networks.Gateways[network]) > 0 })
}

// via are the gateways through which the proxy reaches an endpoint (Istio's
// EndpointsByNetworkFilter). direct means that it needs none: the endpoint is in its network,
// in none that is known, or in one without gateways.
func (in *clusterInput) via(m member) (gateways []networkGateway, direct bool) {
	if in.networks == nil {
		return nil, true
	}
	network := in.networks.of(m.Workload)
	all := in.networks.Gateways[network]
	if len(all) == 0 || network == in.location.network {
		return nil, true
	}
	if in.passes {
		return nil, false // a gateway is for its own network, or requests could go round in circles
	}
	if in.location.family == anyFamily {
		return all, false
	}
	return slices.DeleteFunc(slices.Clone(all), func(g networkGateway) bool { return !in.location.family.accepts(g.Address) }), false
}

// gatewayUse is a gateway in place of endpoints of one group.
type gatewayUse struct {
	group

	gateway networkGateway
}

// behind are the weights of the endpoints behind a gateway.
type behind struct{ well, unhealthy uint64 }

// gatewayEndpoints adds up the weights of endpoints that are replaced by gateways.
type gatewayEndpoints map[gatewayUse]behind

// add divides the weight of an endpoint among gateways.
func (e gatewayEndpoints) add(g group, gateways []networkGateway, weight uint64, unhealthy bool) {
	for _, gw := range gateways {
		use := gatewayUse{g, gw}
		b := e[use]
		if unhealthy {
			b.unhealthy += weight / uint64(len(gateways))
		} else {
			b.well += weight / uint64(len(gateways))
		}
		e[use] = b
	}
}

// addTo adds the gateways as endpoints to their groups. A gateway with unhealthy endpoints
// only is unhealthy; else those have no weight. In Istio all have one.
func (e gatewayEndpoints) addTo(lists map[group][]Endpoint) {
	for use, b := range e {
		weight := cmp.Or(b.well, b.unhealthy, 1)
		lists[use.group] = append(lists[use.group], Endpoint{
			Address: use.gateway.Address, Port: use.gateway.Port, Weight: uint32(min(weight, math.MaxUint32)), Unhealthy: b.well == 0 && b.unhealthy > 0, MTLS: true,
		})
	}
	for _, list := range lists {
		slices.SortStableFunc(list, func(a, b Endpoint) int { return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port)) })
	}
}

// labelsOf are the labels of an endpoint as failoverPriority compares them.
func labelsOf(t *networkTable, m member) func(label string) string {
	return func(label string) string { return comparedValue(label, m.Labels, m.Locality, t.of(m.Workload)) }
}

// gatewayLabels are the labels of a gateway: as in Istio, it has no other than its network.
func gatewayLabels(network string) func(label string) string {
	return func(label string) string {
		if label == labelNetwork {
			return network
		}
		return ""
	}
}

// weightScale is by what weights of endpoints are divided, so that Envoy accepts their sum, and multiplied,
// so that they can be divided among gateways.
type weightScale struct{ divisor, factor uint64 }

// scaleWeights finds the scale for some endpoints and a wanted factor.
func scaleWeights(members []member, takes func(member) bool, factor uint32) weightScale {
	sum, n := uint64(0), uint64(0)
	for _, m := range members {
		if takes(m) {
			sum, n = sum+uint64(max(m.Weight, 1)), n+1
		}
	}
	limit := math.MaxUint32 - min(n*(maxGateways+1), math.MaxUint32/2) // no weight is rounded to 0
	divisor := sum/limit + 1
	return weightScale{divisor, max(min(uint64(factor), limit/(sum/divisor+1)), 1)}
}

// of is the weight of an endpoint, before it is multiplied.
func (s weightScale) of(weight uint32) uint32 {
	return uint32(max(uint64(max(weight, 1))/s.divisor, 1))
}

// multiply multiplies the weights of endpoints that are reached directly.
func (s weightScale) multiply(lists map[group][]Endpoint) {
	for _, list := range lists {
		for i := range list {
			list[i].Weight = uint32(uint64(list[i].Weight) * s.factor)
		}
	}
}

// onceEach leaves each endpoint in one place. Envoy keeps the first of several with one address, so
// that weight and priority of a gateway with several localities behind it would depend on their
// names. It stays where its priority is best, among those places where it is healthy, and has the
// weights of all places with this priority.
func onceEach(list []LocalityEndpoints) []LocalityEndpoints {
	best := map[networkGateway]place{}
	twice := false
	places := placesOf(list)
	for _, p := range places {
		have, ok := best[p.key()]
		twice = twice || ok
		if !ok || p.compare(have) < 0 {
			best[p.key()] = p
		}
	}
	if !twice {
		return list
	}
	dropped := map[*Endpoint]bool{}
	for _, p := range places {
		to := best[p.key()]
		if p.endpoint == to.endpoint {
			continue
		}
		dropped[p.endpoint] = true
		p.locality.Weight -= p.share
		if p.compare(to) == 0 {
			to.locality.Weight += p.share
			to.endpoint.Weight = uint32(min(uint64(to.endpoint.Weight)+uint64(p.endpoint.Weight), math.MaxUint32))
		}
	}
	var out []LocalityEndpoints
	for _, l := range list {
		var left []Endpoint
		for j := range l.Endpoints {
			if !dropped[&l.Endpoints[j]] {
				left = append(left, l.Endpoints[j])
			}
		}
		if l.Endpoints = left; len(left) > 0 {
			out = append(out, l)
		}
	}
	closeGaps(out)
	return out
}

// place is an endpoint in its locality, and what of the locality's weight it has.
type place struct {
	locality *LocalityEndpoints
	endpoint *Endpoint
	share    uint32
}

func placesOf(list []LocalityEndpoints) []place {
	var out []place
	for i := range list {
		l := &list[i]
		total := max(uint64(totalWeight(l.Endpoints)), 1)
		for j := range l.Endpoints {
			e := &l.Endpoints[j]
			out = append(out, place{l, e, uint32(uint64(l.Weight) * uint64(e.Weight) / total)})
		}
	}
	return out
}

func (p place) key() networkGateway { return networkGateway{p.endpoint.Address, p.endpoint.Port} }

// compare is the order in which Envoy would rather use the places of an endpoint.
func (p place) compare(o place) int {
	sick := func(p place) int {
		if p.endpoint.Unhealthy {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(sick(p), sick(o)), cmp.Compare(p.locality.Priority, o.locality.Priority))
}
