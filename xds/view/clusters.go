package view

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// tlsModeLabel on a workload says whether it takes mTLS: "istio" or anything
// else.
const tlsModeLabel = "security.istio.io/tlsMode"

// serviceParts are the parts for one service: a cluster for each port and each
// subset of it, and its endpoints where they come by EDS.
type serviceParts struct {
	clusters, endpoints []Part
	// local means that they are for proxies of one place.
	local bool
}

// serviceInput is what the parts of a service are made from.
type serviceInput struct {
	svc   *mesh.Service
	ports *portSet // nil if all
	rule  *rule    // or nil
	peers *peersOf
	// place is that of the proxy, where the rule fails over.
	place  mesh.Locality
	behind backing
}

// portSet is some of the ports of a service.
type portSet struct{ Ports []mesh.Port }

// backing is the workloads behind a service, and behind others of its name. They are
// known by the list that they are in, which is another one when one of them changes.
type backing struct {
	of        *mesh.Service
	workloads list[*mesh.Workload]
	next      *backing // or nil
}

func (b backing) build(*epoch) *backing { return &b }

// inputOf is what the parts of a service are made from.
func (sc *scope) inputOf(svc *service) serviceInput {
	in := serviceInput{
		svc: svc.Service, rule: svc.rule, peers: sc.authn.in(svc.Namespace), behind: sc.backingOf(svc.Service),
	}
	if !svc.whollySeen() {
		in.ports = sc.ports.of(portSet{svc.Ports})
	}
	if svc.rule.failsOver() {
		in.place = sc.proxy.Locality
	}
	return in
}

// backingOf is what is behind a service and every one of that name in its namespace.
// Those of a catalog are not mixed with others: that takes a service that selects
// them.
func (sc *scope) backingOf(svc *mesh.Service) backing {
	var out backing
	for _, s := range slices.Backward(sc.s.ServicesOn(svc.Hostname)) {
		if s.Namespace != svc.Namespace || s.Catalog != svc.Catalog {
			continue
		}
		here := backing{of: s, workloads: listOf(sc.s.EndpointsOf(s))}
		if out.of != nil {
			here.next = sc.backings.of(sc.epoch, out)
		}
		out = here
	}
	return out
}

// whollySeen reports whether a service is seen with all its ports.
func (s *service) whollySeen() bool {
	return sameList(s.Ports, s.Service.Ports) || slices.Equal(s.Ports, s.Service.Ports)
}

// partsOf are the parts for one service. Proxies that see the same share them.
func (sc *scope) partsOf(svc *service) *serviceParts {
	return sc.epoch.services.of(sc.epoch, sc.inputOf(svc))
}

func (in serviceInput) build(e *epoch) *serviceParts {
	out := &serviceParts{local: in.rule.failsOver()}
	ports := in.svc.Ports
	if in.ports != nil {
		ports = in.ports.Ports
	}
	for _, port := range ports {
		if port.Protocol == mesh.UDP || in.svc.Resolution == mesh.ResolutionDynamicDNS {
			continue
		}
		c := clusterInput{serviceInput: &in, port: port, members: in.behind.membersAt(port)}
		e.appendCluster(out, c)
		if in.rule != nil {
			for _, subset := range in.rule.spec.GetSubsets() {
				c.subset = subset
				e.appendCluster(out, c)
			}
		}
	}
	return out
}

// failsOver reports whether the place of a proxy decides on priorities.
func (r *rule) failsOver() bool {
	if r == nil {
		return false
	}
	detects := func(p *networking.TrafficPolicy) bool {
		return p.GetOutlierDetection() != nil ||
			slices.ContainsFunc(p.GetPortLevelSettings(), func(s *networking.TrafficPolicy_PortTrafficPolicy) bool {
				return s.GetOutlierDetection() != nil
			})
	}
	return detects(r.spec.GetTrafficPolicy()) ||
		slices.ContainsFunc(r.spec.GetSubsets(), func(s *networking.Subset) bool { return detects(s.GetTrafficPolicy()) })
}

// member is a workload with the port at which it serves.
type member struct {
	*mesh.Workload
	port uint32
	ns   string
}

// membersAt are the workloads behind a port.
func (b *backing) membersAt(port mesh.Port) []member {
	var out []member
	for ; b != nil && b.of != nil; b = b.next {
		p, ok := b.of.Port(port.Number)
		if !ok {
			continue
		}
		for _, w := range b.workloads.items() {
			out = append(out, member{Workload: w, port: w.PortFor(p), ns: b.of.Namespace})
		}
	}
	slices.SortStableFunc(out, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.port, b.port))
	})
	return slices.CompactFunc(out, func(a, b member) bool { return a.Address == b.Address && a.port == b.port })
}

// clusterInput is what one cluster of a service is made from.
type clusterInput struct {
	*serviceInput
	port    mesh.Port
	subset  *networking.Subset // or nil
	members []member
}

func (e *epoch) appendCluster(to *serviceParts, in clusterInput) {
	policy := in.rule.policyFor(in.port.Number, in.subset)
	c := &Cluster{
		Ref:       Outbound(in.svc.Hostname, in.port.Number, in.subset.GetName()),
		Discovery: discoveryOf(in.svc.Resolution, policy),
		Protocol:  in.port.Protocol,
		Policy:    policy,
		Defaults:  e.defaults,
	}
	if in.svc.Resolution == mesh.ResolutionNone && in.port.TargetPort != in.port.Number {
		c.UpstreamPort = in.port.TargetPort
	}
	c.TLS = e.peerTLS(in, policy)
	if tls := policy.GetTls(); tls != nil && tls.GetMode() != networking.ClientTLSSettings_ISTIO_MUTUAL {
		c.AltNames = in.svc.SubjectAltNames
	}
	origins := []*mesh.Origin{in.svc.Origin}
	if in.rule != nil {
		origins = append(origins, in.rule.origins...)
	}
	localities, from := e.localities(in, c.Discovery, policy)
	if c.TLS != nil && c.TLS.Auto {
		c.TLS.Auto = e.anyPlaintext(in, policy, localities)
	}
	switch c.Discovery {
	case DiscoverStrictDNS, DiscoverLogicalDNS, DiscoverStatic:
		if len(localities) == 0 {
			return
		}
		c.Localities = localities
		origins = append(origins, from...)
	case DiscoverEDS:
		eds := &Endpoints{Ref: c.Ref, Localities: localities, Auto: c.TLS != nil && c.TLS.Auto}
		eds.origins = originsOf(append(from, in.svc.Origin)...)
		to.endpoints = append(to.endpoints, e.endpoints.of(eds))
	case DiscoverOriginalDst:
	}
	c.origins = originsOf(origins...)
	to.clusters = append(to.clusters, e.clusters.of(c))
}

func discoveryOf(r mesh.Resolution, policy *networking.TrafficPolicy) Discovery {
	if policy.GetLoadBalancer().GetSimple() == networking.LoadBalancerSettings_PASSTHROUGH {
		return DiscoverOriginalDst
	}
	switch r {
	case mesh.ResolutionStatic:
		return DiscoverEDS
	case mesh.ResolutionDNS:
		return DiscoverStrictDNS
	case mesh.ResolutionDNSRoundRobin:
		return DiscoverLogicalDNS
	case mesh.ResolutionNone, mesh.ResolutionDynamicDNS:
		return DiscoverOriginalDst
	default:
		return DiscoverEDS
	}
}

// peerTLS decides on mTLS of the mesh: what the DestinationRule says, else by
// itself where the service is of the mesh and its namespace does not disable it.
func (e *epoch) peerTLS(in clusterInput, policy *networking.TrafficPolicy) *PeerTLS {
	t := &PeerTLS{
		SNI:          fmt.Sprintf("outbound_.%d_.%s_.%s", in.port.Number, in.subset.GetName(), in.svc.Hostname),
		TrustDomains: e.trustDomains,
		MaxAge:       e.settings.clientAge(in.port.Protocol),
	}
	if tls := policy.GetTls(); tls != nil {
		if tls.GetMode() != networking.ClientTLSSettings_ISTIO_MUTUAL {
			return nil
		}
		t.SNI = cmp.Or(tls.GetSni(), t.SNI)
		t.Names = tls.GetSubjectAltNames()
		if len(t.Names) == 0 {
			t.Names = e.identitiesOf(in)
		}
		return t
	}
	if in.svc.External || !e.autoMTLS() || in.peers.mode() == mesh.Disable {
		return nil
	}
	if discoveryOf(in.svc.Resolution, policy) == DiscoverOriginalDst {
		if len(in.members) == 0 || slices.ContainsFunc(in.members, func(m member) bool { return !takesMTLS(m) }) {
			return nil
		}
	}
	t.Auto = true
	t.Names = e.identitiesOf(in)
	return t
}

func (e *epoch) autoMTLS() bool {
	v := e.config.GetEnableAutoMtls()
	return v == nil || v.GetValue()
}

// identitiesOf are the identities that a service's workloads have, in every
// trust domain of the mesh, and those that its manifest accepts.
func (e *epoch) identitiesOf(in clusterInput) []string {
	out := slices.Clone(in.svc.SubjectAltNames)
	for _, m := range in.members {
		if m.ServiceAccount == "" {
			continue
		}
		for _, td := range e.trustDomains {
			out = append(out, "spiffe://"+td+"/ns/"+m.namespace()+"/sa/"+m.ServiceAccount)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// namespace of a workload: an inline endpoint is of its service's.
func (m member) namespace() string { return cmp.Or(m.Namespace, m.ns) }

func takesMTLS(m member) bool {
	if v, ok := m.Labels[tlsModeLabel]; ok {
		return v == "istio"
	}
	return m.ServiceAccount != ""
}

// localities groups the members by place. With outlier detection the places
// nearer to the proxy come first, as MeshConfig's localityLbSetting has it.
func (e *epoch) localities(in clusterInput, d Discovery, policy *networking.TrafficPolicy) ([]Locality, []*mesh.Origin) {
	byPlace := map[mesh.Locality][]Endpoint{}
	var origins []*mesh.Origin
	dns := d == DiscoverStrictDNS || d == DiscoverLogicalDNS
	dropUnhealthy := policy.GetOutlierDetection().GetMinHealthPercent() > 0
	members := in.members
	if len(members) == 0 && dns && in.subset == nil && in.svc.Selector == nil && !in.svc.Hostname.IsWildcard() {
		self := &mesh.Workload{Address: string(in.svc.Hostname)}
		members = []member{{Workload: self, port: self.PortFor(in.port), ns: in.svc.Namespace}}
	}
	for _, m := range members {
		if !mesh.Selects(in.subset.GetLabels(), m.Labels) || (dropUnhealthy && m.Health == mesh.Unhealthy) {
			continue
		}
		if !dns && !isUnix(m.Address) && !isIP(m.Address) {
			continue // Envoy would refuse all of them
		}
		byPlace[m.Locality] = append(byPlace[m.Locality], Endpoint{
			Address:   m.Address,
			Port:      m.port,
			Weight:    max(m.Weight, 1),
			Unhealthy: m.Health == mesh.Unhealthy,
			MTLS:      e.endpointMTLS(in, m, policy),
		})
		origins = append(origins, m.Origin)
	}
	out := make([]Locality, 0, len(byPlace))
	for place, list := range byPlace {
		out = append(out, Locality{Place: place, Endpoints: list})
	}
	slices.SortFunc(out, func(a, b Locality) int {
		return cmp.Or(cmp.Compare(a.Place.Region, b.Place.Region), cmp.Compare(a.Place.Zone, b.Place.Zone),
			cmp.Compare(a.Place.SubZone, b.Place.SubZone))
	})
	if policy.GetOutlierDetection() != nil {
		e.failover(out, in.place)
	}
	return out, origins
}

// anyPlaintext reports whether something behind a cluster does not take mTLS. It
// asks all members, not only the endpoints that they are at present: what is
// unhealthy for a while should not change a cluster.
func (e *epoch) anyPlaintext(in clusterInput, policy *networking.TrafficPolicy, localities []Locality) bool {
	return slices.ContainsFunc(in.members, func(m member) bool {
		return mesh.Selects(in.subset.GetLabels(), m.Labels) && !e.endpointMTLS(in, m, policy)
	}) || slices.ContainsFunc(localities, func(l Locality) bool {
		return slices.ContainsFunc(l.Endpoints, func(x Endpoint) bool { return !x.MTLS })
	})
}

func (e *epoch) endpointMTLS(in clusterInput, m member, policy *networking.TrafficPolicy) bool {
	if tls := policy.GetTls(); tls != nil {
		return tls.GetMode() == networking.ClientTLSSettings_ISTIO_MUTUAL
	}
	if in.svc.External || !takesMTLS(m) {
		return false
	}
	if len(in.peers.selecting) == 0 {
		return in.peers.mode() != mesh.Disable
	}
	p := in.peers.forWorkload(m.Labels)
	return p.forPort(m.port) != mesh.Disable
}

// failover orders places by how much of their locality they share with the
// proxy; priorities have no gaps.
func (e *epoch) failover(list []Locality, from mesh.Locality) {
	setting := e.config.GetLocalityLbSetting()
	if from == (mesh.Locality{}) || (setting.GetEnabled() != nil && !setting.GetEnabled().GetValue()) {
		return
	}
	distance := func(l mesh.Locality) uint32 {
		switch p := from; {
		case l == p:
			return 0
		case l.Region == p.Region && l.Zone == p.Zone:
			return 1
		case l.Region == p.Region:
			return 2
		default:
			return 3
		}
	}
	var used []uint32
	for _, l := range list {
		used = append(used, distance(l.Place))
	}
	slices.Sort(used)
	used = slices.Compact(used)
	for i := range list {
		at := slices.Index(used, distance(list[i].Place))
		list[i].Priority = uint32(at)
	}
}

// fixedInput is what the clusters are made from that every proxy has.
type fixedInput struct {
	router bool
	mode   Interception // empty for routers
}

func (in fixedInput) build(e *epoch) *Layer {
	kinds := []ClusterKind{BlackHoleCluster, PassthroughCluster}
	if in.router {
		kinds = kinds[:1]
	} else if in.mode != InterceptNone {
		kinds = append(kinds, InboundPassthroughCluster)
	}
	parts := make([]Part, 0, len(kinds))
	for _, k := range kinds {
		c := &Cluster{Ref: ClusterRef{Kind: k}, Discovery: DiscoverOriginalDst, Defaults: e.defaults}
		if k == BlackHoleCluster {
			c.Discovery = DiscoverStatic
		}
		c.BindLoopback = k == InboundPassthroughCluster
		parts = append(parts, e.clusters.of(c))
	}
	return e.layer(FixedLayer, parts)
}

func isUnix(address string) bool { return strings.HasPrefix(address, "unix://") }

func isIP(address string) bool {
	_, err := netip.ParseAddr(address)
	return err == nil
}
