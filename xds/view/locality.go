package view

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/metakeys"
)

// location is where a proxy is, as far as endpoints depend on it.
type location struct {
	mesh.Locality

	// network and family are the proxy's, in a mesh with networks.
	network string
	family  networkFamily
	// labels are the proxy's values of the labels that failoverPriority names; or nil.
	labels *labelSet
}

// The labels of topology, which say the same as a locality and a network.
const (
	labelRegion  = metakeys.TopologyRegion
	labelZone    = metakeys.TopologyZone
	labelSubzone = metakeys.TopologySubzone
	labelNetwork = metakeys.TopologyNetwork
	labelCluster = metakeys.TopologyCluster
)

// foreign stands for a value of a label that no endpoint of a service has, so that proxies which
// differ in nothing else share what is made for them. No label has it.
const foreign = "\x00"

// comparedValue is a label of a proxy or an endpoint, as failoverPriority compares it.
func comparedValue(label string, labels map[string]string, l mesh.Locality, network string) string {
	switch label {
	case labelRegion:
		return cmp.Or(l.Region, labels[label])
	case labelZone:
		return cmp.Or(l.Zone, labels[label])
	case labelSubzone:
		return cmp.Or(l.SubZone, labels[label])
	case labelNetwork:
		return cmp.Or(labels[label], network)
	case labelCluster:
		return mesh.ClusterID
	}
	return labels[label]
}

// comparedLabels are the names of the labels in which a setting compares the proxy with
// endpoints.
func comparedLabels(s *networking.LocalityLoadBalancerSetting) []string {
	labels, given := priorityLabels(s)
	return slices.DeleteFunc(labels, func(l string) bool {
		_, ok := given[l]
		return ok
	})
}

// priorityLabels are the names of the labels of failoverPriority, and the values, by name, that
// count in place of the proxy's.
func priorityLabels(s *networking.LocalityLoadBalancerSetting) (labels []string, given map[string]string) {
	for _, p := range s.GetFailoverPriority() {
		parts := strings.Split(p, "=")
		labels = append(labels, parts[0])
		if len(parts) != 2 {
			continue
		}
		if given == nil {
			given = map[string]string{}
		}
		given[parts[0]] = parts[1]
	}
	return labels, given
}

// LocalityFromLabels is a locality with the parts that it lacks taken from a workload's labels.
func LocalityFromLabels(l mesh.Locality, labels map[string]string) mesh.Locality {
	return mesh.Locality{
		Region:  comparedValue(labelRegion, labels, l, ""),
		Zone:    comparedValue(labelZone, labels, l, ""),
		SubZone: comparedValue(labelSubzone, labels, l, ""),
	}
}

// locationOf is where a proxy is.
func (x *Index) locationOf(p *Proxy) location {
	network := x.networks.of(&mesh.Workload{Meta: mesh.Meta{Labels: p.Labels}, Network: p.Network, Address: p.address()})
	out := location{Locality: p.Locality}
	if x.networks != nil {
		out.network, out.family = network, x.networks.familyOf(p)
	}
	if len(x.selectorLabels.compared) == 0 {
		return out
	}
	values := make(map[string]string, len(x.selectorLabels.compared))
	for _, label := range x.selectorLabels.compared {
		values[label] = comparedValue(label, p.Labels, p.Locality, network)
	}
	out.labels = x.labelSets.intern(labelSet{values})
	return out
}

// eachPolicy calls f for the load balancer of each policy in a rule, with whether that policy
// has outlier detection.
func eachPolicy(spec *networking.DestinationRule, f func(lb *networking.LoadBalancerSettings, detects bool)) {
	in := func(p *networking.TrafficPolicy) {
		if p == nil {
			return
		}
		f(p.GetLoadBalancer(), p.GetOutlierDetection() != nil)
		for _, s := range p.GetPortLevelSettings() {
			f(s.GetLoadBalancer(), s.GetOutlierDetection() != nil)
		}
	}
	in(spec.GetTrafficPolicy())
	for _, s := range spec.GetSubsets() {
		in(s.GetTrafficPolicy())
	}
}

// isByLocation reports whether endpoints depend on where the proxy is.
func (mc *meshContext) isByLocation(r *rule) bool {
	out := len(mc.config.GetLocalityLbSetting().GetDistribute()) > 0
	if r != nil && !out {
		eachPolicy(r.spec, func(lb *networking.LoadBalancerSettings, detects bool) {
			out = out || detects || len(lb.GetLocalityLbSetting().GetDistribute()) > 0
		})
	}
	return out
}

// locationFor is the proxy's location, as far as the endpoints of a service depend on it.
func (pc *proxyContext) locationFor(in *serviceInput) location {
	var out location
	if in.isByNetwork() {
		out.family = pc.location.family
		if in.networks.some(&in.workloads, func(network string) bool { return network == pc.location.network }) {
			out.network = pc.location.network // all others are outside for the endpoints
		}
	}
	if !pc.isByLocation(in.rule) {
		return out
	}
	out.Locality = pc.location.Locality
	if pc.location.labels == nil || in.rule == nil { // without outlier detection no label is compared
		return out
	}
	compared := comparedLabels(pc.config.GetLocalityLbSetting())
	eachPolicy(in.rule.spec, func(lb *networking.LoadBalancerSettings, _ bool) {
		compared = append(compared, comparedLabels(lb.GetLocalityLbSetting())...)
	})
	if len(compared) == 0 {
		return out
	}
	values := map[string]string{}
	for _, label := range compared {
		values[label] = foreign
		if v := pc.location.labels.Labels[label]; in.workloads.have(label, v, in.networks) {
			values[label] = v
		}
	}
	out.labels = pc.labelSets.intern(labelSet{values})
	return out
}

// have reports whether some workload has a value of a label.
func (b *serviceWorkloads) have(label, value string, networks *networkTable) bool {
	for ; b != nil && b.service != nil; b = b.next {
		for _, w := range b.workloads.items() {
			if comparedValue(label, w.Labels, w.Locality, networks.of(w)) == value {
				return true
			}
		}
	}
	return false
}

// balancing is how a cluster balances between localities.
type balancing struct {
	setting *networking.LocalityLoadBalancerSetting // nil if it does not
	// fails means that there are priorities; they take outlier detection, or Envoy would never
	// go on to the next one.
	fails bool
	// labels are those of failoverPriority, with the values that it gives.
	labels []string
	given  map[string]string
	// weighted means that localities have weights.
	weighted bool
	// panics means that Envoy sends requests to all endpoints if few are well.
	panics bool
}

// balancingOf is what a policy says, or MeshConfig if it says nothing.
func (mc *meshContext) balancingOf(policy *networking.TrafficPolicy) balancing {
	out := balancing{setting: policy.GetLoadBalancer().GetLocalityLbSetting(), panics: policy.GetOutlierDetection().GetMinHealthPercent() > 0}
	if out.setting == nil {
		out.setting = mc.config.GetLocalityLbSetting()
	}
	if out.setting == nil || (out.setting.GetEnabled() != nil && !out.setting.GetEnabled().GetValue()) {
		out.setting = nil
		return out
	}
	distributes := len(out.setting.GetDistribute()) > 0
	out.fails = policy.GetOutlierDetection() != nil && !distributes
	if out.fails {
		out.labels, out.given = priorityLabels(out.setting)
	}
	out.weighted = distributes || out.fails && len(out.setting.GetFailover())+len(out.setting.GetFailoverPriority()) > 0
	return out
}

// localities groups the members by locality, with priorities and weights as seen from the
// proxy. Silent members are the last resort, see lastResort.
func (mc *meshContext) localities(in clusterInput, d Discovery, b balancing) ([]LocalityEndpoints, []*mesh.Origin) {
	var chosen []member
	var origins []*mesh.Origin
	dns := d == DiscoverStrictDNS || d == DiscoverLogicalDNS
	shares := b.sharesFor(in.location.Locality)
	better := false // than silent
	members := in.members
	if in.resolvesItself(d) {
		self := &mesh.Workload{Address: string(in.svc.Hostname)}
		members = []member{{Workload: self, port: self.PortFor(in.port), ns: in.svc.Namespace}}
	}
	for _, m := range members {
		if !mesh.Selects(in.subset.GetLabels(), m.Labels) || (b.panics && m.Health == mesh.Unhealthy) {
			continue
		}
		if !m.usable(dns) {
			continue // Envoy would reject the whole resource
		}
		origins = append(origins, m.Origin)
		if shares != nil && shares.of(m.Locality) == "" {
			continue
		}
		better = better || m.Health == mesh.Healthy || m.Health == mesh.HealthUnknown
		chosen = append(chosen, m)
	}
	silent := func(m member) bool { return better && m.Health == mesh.Silent }
	out := mc.byLocality(in, b, chosen, func(m member) bool { return !silent(m) })
	if better && !b.panics && !spills(out, b) {
		last := mc.byLocality(in, balancing{weighted: b.weighted}, chosen, silent)
		shares.weigh(last)
		for i := range last {
			last[i].Priority, last[i].LastResort = 1, true
		}
		if out = append(out, last...); in.networks != nil {
			out = onceEach(out)
		}
	}
	return out, origins
}

// spills reports whether Envoy sends requests away from a locality when some of its endpoints
// are not well. Silent endpoints are a last priority, which Envoy uses only while the first one
// has no endpoint that may get requests, because the ClusterLoadAssignment says that one is
// enough. Where Envoy spills, one is not enough: it does so as soon as less than 71 % of a
// priority, or of a locality with a weight, are well. Then silent endpoints are left out, as they
// are where Envoy panics: it would not, with a priority that is well.
func spills(known []LocalityEndpoints, b balancing) bool {
	return b.weighted && len(known) > 1 || slices.ContainsFunc(known, func(l LocalityEndpoints) bool { return l.Priority > 0 })
}

// group is what endpoints are grouped by.
type group struct {
	mesh.Locality

	rank int // by failoverPriority
}

// byLocality groups those members that a function takes, by locality and priority.
func (mc *meshContext) byLocality(in clusterInput, b balancing, members []member, takes func(member) bool) []LocalityEndpoints {
	lists := mc.endpointsByGroup(in, b, members, takes)
	groups := slices.SortedFunc(maps.Keys(lists), func(a, b group) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.SubZone, b.SubZone), cmp.Compare(a.rank, b.rank))
	})
	out := make([]LocalityEndpoints, 0, len(lists))
	for _, g := range groups {
		l := LocalityEndpoints{Locality: g.Locality, Endpoints: lists[g], Priority: b.priority(in.location.Locality, g)}
		if b.weighted {
			l.Weight = totalWeight(l.Endpoints)
		}
		out = append(out, l)
	}
	closeGaps(out)
	boundWeights(out)
	b.sharesFor(in.location.Locality).weigh(out)
	if in.networks != nil {
		out = onceEach(out)
	}
	return out
}

// endpointsByGroup are the endpoints of members, by locality and rank. Gateways stand in for those
// that are in other networks.
func (mc *meshContext) endpointsByGroup(in clusterInput, b balancing, members []member, takes func(member) bool) map[group][]Endpoint {
	lists := map[group][]Endpoint{}
	remote := gatewayEndpoints{}
	scale := scaleWeights(members, takes, in.networks.scale())
	for _, m := range members {
		if !takes(m) {
			continue
		}
		e := Endpoint{
			Address:   m.Address,
			Port:      m.port,
			Weight:    scale.of(m.Weight),
			Unhealthy: m.Health == mesh.Unhealthy,
			MTLS:      mc.endpointMTLS(in, m),
			Workload:  mc.reportedName(m.Workload),
		}
		gateways, direct := in.via(m)
		switch {
		case direct && m.Address != "":
			g := group{m.Locality, b.rank(in.location, labelsOf(in.networks, m))}
			lists[g] = append(lists[g], e)
		case !direct && len(gateways) > 0 && e.MTLS && takesMTLS(m): // the gateway finds the endpoint by the server name of mTLS
			g := group{m.Locality, b.rank(in.location, gatewayLabels(in.networks.of(m.Workload)))}
			remote.add(g, gateways, uint64(e.Weight)*scale.factor, e.Unhealthy)
		}
	}
	if in.networks != nil { // all endpoints, as in Istio, so that health behind a gateway changes no other weight
		scale.multiply(lists)
	}
	if len(remote) > 0 {
		remote.addTo(lists)
	}
	return lists
}

// boundWeights divides the weights of localities where their sum is more than Envoy accepts.
func boundWeights(list []LocalityEndpoints) {
	sum := uint64(0)
	for i := range list {
		sum += uint64(list[i].Weight)
	}
	if sum <= math.MaxUint32 {
		return
	}
	for i := range list {
		list[i].Weight = max(list[i].Weight/uint32(sum/math.MaxUint32+1), 1)
	}
}

func totalWeight(list []Endpoint) uint32 {
	sum := uint64(0)
	for i := range list {
		sum += uint64(list[i].Weight)
	}
	return uint32(min(sum, math.MaxUint32))
}

// rank is how many labels of failoverPriority an endpoint does not share with the proxy, counted
// from the first that differs: 0 is the best.
func (b *balancing) rank(from location, values func(label string) string) int {
	otherNetwork := 0
	for i, label := range b.labels {
		value, given := b.given[label]
		if !given && from.labels != nil {
			value = from.labels.Labels[label]
		}
		if value == values(label) {
			continue
		}
		if i == 0 && label == b.setting.GetFailoverPriority()[0] && label == labelNetwork { // the other labels count within each network
			otherNetwork = len(b.labels)
			continue
		}
		return otherNetwork + len(b.labels) - i
	}
	return otherNetwork
}

// priority is that of a group of endpoints, with gaps.
func (b *balancing) priority(from mesh.Locality, g group) uint32 {
	const distances = 5
	switch {
	case !b.fails:
		return 0
	case len(b.labels) == 0:
		return b.distance(from, g.Locality)
	case len(b.setting.GetFailover()) == 0:
		return uint32(g.rank)
	default:
		return uint32(g.rank)*distances + b.distance(from, g.Locality)
	}
}

// distance is how little of a locality is the proxy's. A region that is not the one to which
// failover leads is farthest.
func (b *balancing) distance(from, l mesh.Locality) uint32 {
	switch {
	case l == from:
		return 0
	case l.Region == from.Region && l.Zone == from.Zone:
		return 1
	case l.Region == from.Region:
		return 2
	}
	for _, f := range b.setting.GetFailover() {
		if f.GetFrom() != from.Region {
			continue
		}
		if l.Region != f.GetTo() {
			return 4
		}
		break
	}
	return 3
}

// closeGaps numbers priorities from 0 on.
func closeGaps(list []LocalityEndpoints) {
	var used []uint32
	for i := range list {
		used = append(used, list[i].Priority)
	}
	slices.Sort(used)
	used = slices.Compact(used)
	for i := range list {
		list[i].Priority = uint32(slices.Index(used, list[i].Priority))
	}
}

// localityShares are the percentages that distribute gives to localities, by "region/zone/subzone",
// perhaps with wildcards. No two of them cover one locality.
type localityShares map[string]uint32

// sharesFor are the shares for proxies of a locality; nil if no distribution is for them.
func (b *balancing) sharesFor(from mesh.Locality) localityShares {
	for _, d := range b.setting.GetDistribute() {
		if covers(d.GetFrom(), from) {
			return localityShares(d.GetTo())
		}
	}
	return nil
}

// of is the name of the share that a locality has a part of; "" if it has none.
func (s localityShares) of(l mesh.Locality) string {
	out := ""
	for name := range s {
		if covers(name, l) && (out == "" || name < out) {
			out = name
		}
	}
	return out
}

// weigh divides each share among the localities that it covers, by their own weights.
func (s localityShares) weigh(list []LocalityEndpoints) {
	if s == nil {
		return
	}
	totals := map[string]uint64{}
	for i := range list {
		totals[s.of(list[i].Locality)] += uint64(list[i].Weight)
	}
	for i := range list {
		name := s.of(list[i].Locality)
		list[i].Weight = uint32(math.Ceil(float64(uint64(list[i].Weight)*uint64(s[name])) / float64(totals[name])))
	}
}

// covers reports whether a locality of a setting, in which "*" or nothing stands for all, covers
// another.
func covers(pattern string, l mesh.Locality) bool {
	p := mesh.ParseLocality(pattern)
	is := func(p, v string) bool { return p == "*" || p == v }
	return is(p.Region, l.Region) && (p.Zone == "" || is(p.Zone, l.Zone)) && (p.SubZone == "" || is(p.SubZone, l.SubZone))
}
