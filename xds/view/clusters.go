package view

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
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

// serviceKey is everything that the parts of a service depend on. Workloads are
// known by the list that they are in, which is another one when one of them
// changes.
type serviceKey struct {
	svc   *mesh.Service
	ports string // empty if all
	rule  *rule
	peers *peersOf
	place mesh.Locality
	first **mesh.Workload
	count int
	// only is the seq of the Index where several services have the name, for
	// then the workloads are in several lists; else 0. Not the snapshot itself:
	// keys stay a while when nobody has their parts, and would keep it.
	only uint64
}

func (sc *scope) serviceKey(svc *service) serviceKey {
	key := serviceKey{svc: svc.Service, ports: portList(svc), rule: svc.rule, peers: sc.authn.in(svc.Namespace)}
	if svc.rule.failsOver() {
		key.place = sc.proxy.Locality
	}
	for _, other := range sc.s.ServicesOn(svc.Hostname) {
		if other.Namespace == svc.Namespace && other != svc.Service {
			key.only = sc.seq
		}
	}
	if list := sc.s.EndpointsOf(svc.Service); len(list) > 0 {
		key.first, key.count = &list[0], len(list)
	}
	return key
}

// portList tells which of its ports a service is seen with; it is empty if they
// are all seen.
func portList(svc *service) string {
	if sameList(svc.Ports, svc.Service.Ports) || slices.Equal(svc.Ports, svc.Service.Ports) {
		return ""
	}
	var b strings.Builder
	for _, p := range svc.Ports {
		b.WriteString(strconv.FormatUint(uint64(p.Number), 10) + ",")
	}
	return b.String()
}

// partsOf are the parts for one service. Proxies that see the same share them.
func (sc *scope) partsOf(svc *service) *serviceParts {
	key := sc.serviceKey(svc)
	if have := sc.epoch.services.get(key); have != nil {
		return have
	}
	out := &serviceParts{local: svc.rule.failsOver()}
	for _, port := range svc.Ports {
		if port.Protocol == mesh.UDP || svc.Resolution == mesh.ResolutionDynamicDNS {
			continue
		}
		in := clusterInput{svc: svc, port: port, rule: svc.rule, peers: key.peers, members: sc.membersOf(svc, port)}
		sc.appendCluster(out, in)
		if svc.rule != nil {
			for _, subset := range svc.rule.spec.GetSubsets() {
				in.subset = subset
				sc.appendCluster(out, in)
			}
		}
	}
	out, _ = sc.epoch.services.keep(key, out)
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

// membersOf are the workloads behind a port, from every service of that name in
// the namespace. Those of a catalog are not mixed with others: that takes a
// service that selects them.
func (sc *scope) membersOf(svc *service, port mesh.Port) []member {
	var out []member
	for _, s := range sc.s.ServicesOn(svc.Hostname) {
		if s.Namespace != svc.Namespace || s.Catalog != svc.Catalog {
			continue
		}
		p, ok := s.Port(port.Number)
		if !ok {
			continue
		}
		for _, w := range sc.s.EndpointsOf(s) {
			out = append(out, member{Workload: w, port: w.PortFor(p), ns: s.Namespace})
		}
	}
	slices.SortStableFunc(out, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.port, b.port))
	})
	return slices.CompactFunc(out, func(a, b member) bool { return a.Address == b.Address && a.port == b.port })
}

type clusterInput struct {
	svc     *service
	port    mesh.Port
	rule    *rule
	peers   *peersOf
	subset  *networking.Subset // or nil
	members []member
}

func (sc *scope) appendCluster(to *serviceParts, in clusterInput) {
	policy := in.rule.policyFor(in.port.Number, in.subset)
	c := &Cluster{
		Ref:       Outbound(in.svc.Hostname, in.port.Number, in.subset.GetName()),
		Discovery: discoveryOf(in.svc.Resolution, policy),
		Protocol:  in.port.Protocol,
		Policy:    policy,
		Defaults:  sc.defaults,
	}
	if in.svc.Resolution == mesh.ResolutionNone && in.port.TargetPort != in.port.Number {
		c.UpstreamPort = in.port.TargetPort
	}
	c.TLS = sc.peerTLS(in, policy)
	if tls := policy.GetTls(); tls != nil && tls.GetMode() != networking.ClientTLSSettings_ISTIO_MUTUAL {
		c.AltNames = in.svc.SubjectAltNames
	}
	origins := []*mesh.Origin{in.svc.Origin}
	if in.rule != nil {
		origins = append(origins, in.rule.origins...)
	}
	localities, from := sc.localities(in, c.Discovery, policy)
	if c.TLS != nil && c.TLS.Auto {
		c.TLS.Auto = sc.anyPlaintext(in, policy, localities)
	}
	switch c.Discovery {
	case DiscoverStrictDNS, DiscoverLogicalDNS, DiscoverStatic:
		if len(localities) == 0 {
			return
		}
		c.Localities = localities
		origins = append(origins, from...)
	case DiscoverEDS:
		e := &Endpoints{Ref: c.Ref, Localities: localities, Auto: c.TLS != nil && c.TLS.Auto}
		e.origins = originsOf(append(from, in.svc.Origin)...)
		to.endpoints = append(to.endpoints, sc.loadAssignment(e))
	case DiscoverOriginalDst:
	}
	c.origins = originsOf(origins...)
	to.clusters = append(to.clusters, sc.cluster(c))
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
func (sc *scope) peerTLS(in clusterInput, policy *networking.TrafficPolicy) *PeerTLS {
	t := &PeerTLS{
		SNI:          fmt.Sprintf("outbound_.%d_.%s_.%s", in.port.Number, in.subset.GetName(), in.svc.Hostname),
		TrustDomains: sc.trustDomains,
		MaxAge:       sc.settings.clientAge(in.port.Protocol),
	}
	if tls := policy.GetTls(); tls != nil {
		if tls.GetMode() != networking.ClientTLSSettings_ISTIO_MUTUAL {
			return nil
		}
		t.SNI = cmp.Or(tls.GetSni(), t.SNI)
		t.Names = tls.GetSubjectAltNames()
		if len(t.Names) == 0 {
			t.Names = sc.identitiesOf(in)
		}
		return t
	}
	if in.svc.External || !sc.autoMTLS() || in.peers.mode() == mesh.Disable {
		return nil
	}
	if discoveryOf(in.svc.Resolution, policy) == DiscoverOriginalDst {
		if len(in.members) == 0 || slices.ContainsFunc(in.members, func(m member) bool { return !takesMTLS(m) }) {
			return nil
		}
	}
	t.Auto = true
	t.Names = sc.identitiesOf(in)
	return t
}

func (st *site) autoMTLS() bool {
	v := st.s.MeshConfig.Spec.GetEnableAutoMtls()
	return v == nil || v.GetValue()
}

// identitiesOf are the identities that a service's workloads have, in every
// trust domain of the mesh, and those that its manifest accepts.
func (sc *scope) identitiesOf(in clusterInput) []string {
	out := slices.Clone(in.svc.SubjectAltNames)
	for _, m := range in.members {
		if m.ServiceAccount == "" {
			continue
		}
		for _, td := range sc.trustDomains {
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
func (sc *scope) localities(in clusterInput, d Discovery, policy *networking.TrafficPolicy) ([]Locality, []*mesh.Origin) {
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
			MTLS:      sc.endpointMTLS(in, m, policy),
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
		sc.failover(out)
	}
	return out, origins
}

// anyPlaintext reports whether something behind a cluster does not take mTLS. It
// asks all members, not only the endpoints that they are at present: what is
// unhealthy for a while should not change a cluster.
func (sc *scope) anyPlaintext(in clusterInput, policy *networking.TrafficPolicy, localities []Locality) bool {
	return slices.ContainsFunc(in.members, func(m member) bool {
		return mesh.Selects(in.subset.GetLabels(), m.Labels) && !sc.endpointMTLS(in, m, policy)
	}) || slices.ContainsFunc(localities, func(l Locality) bool {
		return slices.ContainsFunc(l.Endpoints, func(e Endpoint) bool { return !e.MTLS })
	})
}

func (sc *scope) endpointMTLS(in clusterInput, m member, policy *networking.TrafficPolicy) bool {
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
func (sc *scope) failover(list []Locality) {
	setting := sc.s.MeshConfig.Spec.GetLocalityLbSetting()
	if sc.proxy.Locality == (mesh.Locality{}) || (setting.GetEnabled() != nil && !setting.GetEnabled().GetValue()) {
		return
	}
	distance := func(l mesh.Locality) uint32 {
		switch p := sc.proxy.Locality; {
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

// fixedClusters are those that every sidecar has.
func (st *site) fixedClusters() *Layer {
	kinds := []ClusterKind{BlackHoleCluster, PassthroughCluster}
	mode := st.proxy.Interception
	if st.proxy.Type == Router {
		kinds, mode = kinds[:1], ""
	} else if mode != InterceptNone {
		kinds = append(kinds, InboundPassthroughCluster)
	}
	if have := st.fixed.get(mode); have != nil {
		return have
	}
	parts := make([]Part, 0, len(kinds))
	for _, k := range kinds {
		c := &Cluster{Ref: ClusterRef{Kind: k}, Discovery: DiscoverOriginalDst, Defaults: st.defaults}
		if k == BlackHoleCluster {
			c.Discovery = DiscoverStatic
		}
		c.BindLoopback = k == InboundPassthroughCluster
		parts = append(parts, st.cluster(c))
	}
	l, _ := st.fixed.keep(mode, st.layer(FixedLayer, parts))
	return l
}

func isUnix(address string) bool { return strings.HasPrefix(address, "unix://") }

func isIP(address string) bool {
	_, err := netip.ParseAddr(address)
	return err == nil
}
