package view

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/metakeys"
)

// tlsModeLabel on a workload says whether it accepts mTLS: "istio" means yes, any other
// value no.
const tlsModeLabel = metakeys.TLSMode

// serviceParts are the parts for one service: a cluster for each port and each subset of
// it, and its endpoints if they are discovered by EDS.
type serviceParts struct {
	clusters, endpoints []Part
	// empty are the clusters of which no endpoint is known, though they need one; unhealthy are those that
	// are left out because none is healthy.
	empty, unhealthy []ClusterRef
	// byLocation means that the parts are for proxies of one location.
	byLocation bool
}

// serviceInput is what the parts of a service are made from.
type serviceInput struct {
	svc   *mesh.Service
	ports *portSet // nil if all
	rule  *rule    // or nil
	authn *namespaceAuthn
	// location is the proxy's, as far as the endpoints depend on it.
	location location
	// upstream is the proxy's, as far as the service depends on it.
	upstream  upstreamSettings
	workloads serviceWorkloads
	// networks are nil if no workload is in one.
	networks *networkTable
	// passes adds clusters for mTLS that passes through a gateway.
	passes bool
}

// portSet is some ports of a service.
type portSet struct{ Ports []mesh.Port }

// serviceWorkloads is the workloads of a service, and of others with its host name. The
// list of workloads is another slice when one of them changes, so it serves as a key.
type serviceWorkloads struct {
	service   *mesh.Service
	workloads sliceRef[*mesh.Workload]
	next      *serviceWorkloads // or nil
}

func (b serviceWorkloads) build(*meshContext) *serviceWorkloads { return &b }

// serviceInputOf returns what the parts of a service are made from.
func (sc *sidecarScope) serviceInputOf(svc *service) serviceInput {
	in := sc.inputOf(svc.Service, svc.rule)
	in.passes = sc.passes(svc.Service)
	if !svc.hasAllPorts() {
		in.ports = sc.portSets.intern(portSet{svc.Ports})
	}
	return in
}

// inputOf returns what the parts of a service with all its ports are made from, with the rule
// that the proxy has for it.
func (pc *proxyContext) inputOf(svc *mesh.Service, r *rule) serviceInput {
	in := serviceInput{svc: svc, rule: r, authn: pc.authn.in(svc.Namespace), workloads: pc.workloadsOf(svc)}
	in.networks = pc.networksFor(&in.workloads)
	in.location = pc.locationFor(&in)
	if svc.Resolution == mesh.ResolutionDNS || svc.Resolution == mesh.ResolutionDNSRoundRobin || svc.Resolution == mesh.ResolutionDynamicDNS {
		in.upstream.lookup = pc.upstream.lookup
	}
	if svc.Resolution == mesh.ResolutionDynamicDNS {
		in.upstream.gateway = pc.upstream.gateway
	}
	if slices.ContainsFunc(svc.Ports, mayBeHTTP) {
		in.upstream.keepCase = pc.upstream.keepCase
	}
	if r.originatesTLS() {
		in.upstream.fileSecrets, in.upstream.fileLists = pc.upstream.fileSecrets, pc.upstream.fileLists
	}
	if r.namesCredentials() {
		in.upstream.gateway = pc.upstream.gateway
	}
	return in
}

func mayBeHTTP(p mesh.Port) bool { return p.Protocol.IsHTTP() || p.Protocol == mesh.Undeclared }

// workloadsOf returns the workloads of all services with this host name in one namespace.
// Services of a catalog are not mixed with others: a service can select the catalog's
// workloads instead.
func (x *Index) workloadsOf(svc *mesh.Service) serviceWorkloads {
	var out serviceWorkloads
	for _, s := range slices.Backward(x.s.ServicesOn(svc.Hostname)) {
		if s.Namespace != svc.Namespace || s.Catalog != svc.Catalog {
			continue
		}
		here := serviceWorkloads{service: s, workloads: sliceRefOf(x.s.EndpointsOf(s))}
		if out.service != nil {
			here.next = x.serviceWorkloads.get(x.meshContext, out)
		}
		out = here
	}
	return out
}

// hasAllPorts reports whether the proxy sees all ports of the service.
func (s *service) hasAllPorts() bool {
	return sameSlice(s.Ports, s.Service.Ports) || slices.Equal(s.Ports, s.Service.Ports)
}

// partsOf are the parts for one service. Proxies that see the same share them.
func (sc *sidecarScope) partsOf(svc *service) *serviceParts {
	return sc.serviceParts.get(sc.meshContext, sc.serviceInputOf(svc))
}

func (in serviceInput) build(mc *meshContext) *serviceParts {
	out := &serviceParts{byLocation: mc.isByLocation(in.rule) || in.isByNetwork()}
	ports := in.svc.Ports
	if in.ports != nil {
		ports = in.ports.Ports
	}
	for _, port := range ports {
		if port.Protocol == mesh.UDP {
			continue
		}
		if in.svc.Resolution == mesh.ResolutionDynamicDNS { // it has no subsets, as in Istio
			// Never at a gateway: whoever may send a request there would choose where it goes.
			if forwardsByName(port) && !in.upstream.gateway {
				mc.appendCluster(out, clusterInput{serviceInput: &in, port: port})
			}
			continue
		}
		c := clusterInput{serviceInput: &in, port: port, members: in.membersAt(port)}
		mc.appendClusters(out, c)
		if in.passes {
			c.passes = true
			mc.appendClusters(out, c)
		}
	}
	return out
}

// originatesTLS reports whether some cluster has TLS with certificates in files.
func (r *rule) originatesTLS() bool {
	if r == nil {
		return false
	}
	return r.anyTLS(originates)
}

func originates(tls *networking.ClientTLSSettings) bool {
	return tls.GetMode() == networking.ClientTLSSettings_SIMPLE || tls.GetMode() == networking.ClientTLSSettings_MUTUAL
}

// namesCredentials reports whether some cluster has TLS with a credential of the host, which
// sidecars have only if a selector says so.
func (r *rule) namesCredentials() bool {
	return r != nil && r.spec.GetWorkloadSelector() == nil && r.anyTLS(namesCredential)
}

func namesCredential(tls *networking.ClientTLSSettings) bool {
	return originates(tls) && tls.GetCredentialName() != ""
}

// anyTLS reports whether some TLS settings of the rule have a property.
func (r *rule) anyTLS(has func(*networking.ClientTLSSettings) bool) bool {
	inPolicy := func(p *networking.TrafficPolicy) bool {
		return has(p.GetTls()) ||
			slices.ContainsFunc(p.GetPortLevelSettings(), func(s *networking.TrafficPolicy_PortTrafficPolicy) bool { return has(s.GetTls()) })
	}
	return inPolicy(r.spec.GetTrafficPolicy()) ||
		slices.ContainsFunc(r.spec.GetSubsets(), func(s *networking.Subset) bool { return inPolicy(s.GetTrafficPolicy()) })
}

// member is a workload with the port at which it serves.
type member struct {
	*mesh.Workload
	port uint32
	ns   string
}

// membersAt are the workloads that serve a port, one for each address of a network.
func (in *serviceInput) membersAt(port mesh.Port) []member {
	var out []member
	for b := &in.workloads; b != nil && b.service != nil; b = b.next {
		p, ok := b.service.Port(port.Number)
		if !ok {
			continue
		}
		for _, w := range b.workloads.items() {
			out = append(out, member{Workload: w, port: w.PortFor(p), ns: b.service.Namespace})
		}
	}
	compare := func(a, b member) int {
		if order := cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.port, b.port)); order != 0 || in.networks == nil {
			return order
		}
		return cmp.Compare(in.networks.of(a.Workload), in.networks.of(b.Workload)) // private networks may have the same addresses
	}
	slices.SortStableFunc(out, compare)
	return slices.CompactFunc(out, func(a, b member) bool { return a.Address != "" && compare(a, b) == 0 })
}

// clusterInput is what one cluster of a service is made from.
type clusterInput struct {
	*serviceInput
	port    mesh.Port
	subset  *networking.Subset // or nil
	members []member
	// ref is the cluster's; the zero value means that it follows from the others.
	ref ClusterRef
	// reports is zero for a cluster that carries requests.
	reports Reports
	// passes means that mTLS passes to the cluster as it comes.
	passes bool
}

func (mc *meshContext) appendCluster(to *serviceParts, in clusterInput) {
	policy := in.rule.policyFor(in.port.Number, in.subset)
	if in.passes { // to endpoints that end mTLS, which is for each subset to say
		in.members = slices.DeleteFunc(slices.Clone(in.members), func(m member) bool { return !mc.endpointMTLS(in, m) || !takesMTLS(m) })
		in.ref, policy = ClusterRef{Kind: SNICluster, Port: in.port.Number, Subset: in.subset.GetName(), Host: in.svc.Hostname}, withoutTLS(policy)
	}
	c := &Cluster{
		Ref:            cmp.Or(in.ref, Outbound(in.svc.Hostname, in.port.Number, in.subset.GetName())),
		Discovery:      discoveryOf(in.svc.Resolution, policy),
		Lookup:         in.upstream.lookup,
		Protocol:       in.port.Protocol,
		Policy:         policy,
		Defaults:       mc.defaults,
		KeepHeaderCase: in.upstream.keepCase,
		Service:        mc.reportedService(in.svc.Hostname, in.svc.Namespace),
		Reports:        in.reports,
		TableLimit:     in.tableLimit(policy),
	}
	if in.svc.Resolution == mesh.ResolutionNone && in.port.TargetPort != in.port.Number {
		c.UpstreamPort = in.port.TargetPort
	}
	if !in.passes {
		c.TLS = mc.peerTLS(in, policy)
	}
	if namesCredential(policy.GetTls()) && in.rule.spec.GetWorkloadSelector() == nil && !in.upstream.gateway {
		// As in Istio: the rule is for gateways, which have the key, and a sidecar sends what the
		// application sends, which may be TLS already.
		policy = withoutPorts(policy)
		policy.Tls = &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_DISABLE}
		c.Policy = policy
	}
	if tls := policy.GetTls(); tls != nil && tls.GetMode() != networking.ClientTLSSettings_ISTIO_MUTUAL {
		c.AltNames, c.FileSecrets, c.FileLists = mc.identitiesOf(in), in.upstream.fileSecrets, in.upstream.fileLists
	}
	origins := []*mesh.Origin{in.svc.Origin}
	if in.rule != nil {
		origins = append(origins, in.rule.origins...)
	}
	balance := mc.balancingOf(policy)
	localities, from := mc.localities(in, c.Discovery, balance)
	if c.TLS != nil && c.TLS.Auto {
		c.TLS.Auto = mc.anyPlaintext(in, localities)
	}
	known := c.Discovery == DiscoverOriginalDst || c.Discovery == DiscoverDynamic || in.known(c.Discovery)
	if !known {
		to.empty = append(to.empty, c.Ref)
	}
	switch c.Discovery {
	case DiscoverStrictDNS, DiscoverLogicalDNS, DiscoverStatic:
		if len(from) == 0 {
			if known {
				to.unhealthy = append(to.unhealthy, c.Ref)
			}
			return
		}
		if c.Discovery == DiscoverLogicalDNS { // of which Envoy wants one endpoint
			switch countEndpoints(localities) {
			case 0: // distribute leaves none
				c.Discovery = DiscoverStatic
			case 1:
			default: // several gateways of a network are in place of it
				c.Discovery = DiscoverStrictDNS
			}
		}
		c.Localities = localities
		origins = append(origins, from...)
		c.LocalityWeighted = balance.weighted
	case DiscoverEDS:
		c.LocalityWeighted = balance.weighted
		eds := &Endpoints{Ref: c.Ref, Localities: localities, Auto: c.TLS != nil && c.TLS.Auto}
		eds.origins = originsOf(append(from, in.svc.Origin)...)
		to.endpoints = append(to.endpoints, mc.endpoints.intern(eds))
	case DiscoverOriginalDst, DiscoverDynamic:
	}
	c.origins = originsOf(origins...)
	to.clusters = append(to.clusters, mc.clusters.intern(c))
}

// tableLimit is the largest table of consistentHash that the cluster may have; 0 means that of Envoy. By its weights
// alone, a ring of 1,024 entries grows to 8 million. A ring has place for each endpoint, and changes with their
// number seldom.
func (in *clusterInput) tableLimit(policy *networking.TrafficPolicy) uint64 {
	n := mesh.HashTable(policy.GetLoadBalancer())
	if n == 0 || in.rule == nil || !in.rule.limitTables {
		return 0
	}
	for limit := uint64(1024); n < uint64(len(in.members)); limit *= 2 {
		n = max(n, limit)
	}
	return n
}

func countEndpoints(list []LocalityEndpoints) int {
	n := 0
	for i := range list {
		n += len(list[i].Endpoints)
	}
	return n
}

func discoveryOf(r mesh.Resolution, policy *networking.TrafficPolicy) Discovery {
	if r == mesh.ResolutionDynamicDNS {
		return DiscoverDynamic
	}
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
	case mesh.ResolutionNone:
		return DiscoverOriginalDst
	default:
		return DiscoverEDS
	}
}

// peerTLS decides on mTLS of the mesh. A DestinationRule decides first. Otherwise mTLS is
// automatic for services in the mesh, unless their namespace disables it.
func (mc *meshContext) peerTLS(in clusterInput, policy *networking.TrafficPolicy) *PeerTLS {
	t := &PeerTLS{
		SNI:          fmt.Sprintf("outbound_.%d_.%s_.%s", in.port.Number, in.subset.GetName(), in.svc.Hostname),
		TrustDomains: mc.trustDomains,
		MaxAge:       mc.settings.clientAge(in.port.Protocol),
	}
	dynamic := in.svc.Resolution == mesh.ResolutionDynamicDNS
	if dynamic { // the name of the request
		t.SNI = ""
	}
	if tls := policy.GetTls(); tls != nil {
		if tls.GetMode() != networking.ClientTLSSettings_ISTIO_MUTUAL {
			return nil
		}
		t.SNI = cmp.Or(tls.GetSni(), t.SNI)
		t.Names = tls.GetSubjectAltNames()
		if len(t.Names) == 0 {
			t.Names = mc.identitiesOf(in)
		}
		return t
	}
	if dynamic || in.svc.External || !mc.autoMTLS() || in.authn.mode() == mesh.Disable {
		return nil
	}
	if discoveryOf(in.svc.Resolution, policy) == DiscoverOriginalDst {
		if len(in.members) == 0 || slices.ContainsFunc(in.members, func(m member) bool { return !takesMTLS(m) }) {
			return nil
		}
	}
	t.Auto = true
	t.Names = mc.identitiesOf(in)
	return t
}

func (mc *meshContext) autoMTLS() bool {
	v := mc.config.GetEnableAutoMtls()
	return v == nil || v.GetValue()
}

// identitiesOf are the identities of a service's workloads in every trust domain of the
// mesh, and those that its manifest accepts, which the aliases of the trust domain have, too.
func (mc *meshContext) identitiesOf(in clusterInput) []string {
	out := slices.Clone(in.svc.SubjectAltNames)
	for _, name := range in.svc.SubjectAltNames {
		path, ok := workloadPath(name)
		if !ok {
			continue
		}
		for _, td := range mc.config.GetTrustDomainAliases() {
			out = append(out, "spiffe://"+td+path)
		}
	}
	for _, m := range in.members {
		if m.ServiceAccount == "" {
			continue
		}
		for _, td := range mc.trustDomains {
			out = append(out, "spiffe://"+td+"/ns/"+m.namespace()+"/sa/"+m.ServiceAccount)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// workloadPath is /ns/NAMESPACE/sa/ACCOUNT of the identity of a workload.
func workloadPath(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, "spiffe://")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" {
		return "", false
	}
	return "/" + strings.Join(parts[1:], "/"), true
}

// namespace of a workload: an inline endpoint has that of its service.
func (m member) namespace() string { return cmp.Or(m.Namespace, m.ns) }

func takesMTLS(m member) bool {
	if v, ok := m.Labels[tlsModeLabel]; ok {
		return v == tlsModeIstio
	}
	return m.ServiceAccount != ""
}

// anyPlaintext reports whether some member of a cluster does not accept mTLS. It checks all
// members, not only the current endpoints, so that a member that is unhealthy for a while
// does not change the cluster.
func (mc *meshContext) anyPlaintext(in clusterInput, localities []LocalityEndpoints) bool {
	return slices.ContainsFunc(in.members, func(m member) bool {
		return mesh.Selects(in.subset.GetLabels(), m.Labels) && !mc.endpointMTLS(in, m)
	}) || slices.ContainsFunc(localities, func(l LocalityEndpoints) bool {
		return slices.ContainsFunc(l.Endpoints, func(x Endpoint) bool { return !x.MTLS })
	})
}

func (mc *meshContext) endpointMTLS(in clusterInput, m member) bool {
	if mode := in.rule.tlsModeFor(in.port.Number, in.subset); mode != nil {
		return *mode == networking.ClientTLSSettings_ISTIO_MUTUAL
	}
	if in.svc.External || !takesMTLS(m) {
		return false
	}
	if len(in.authn.selecting) == 0 {
		return in.authn.mode() != mesh.Disable
	}
	p := in.authn.forWorkload(m.Labels)
	return p.forPort(m.port) != mesh.Disable
}

func isUnix(address string) bool { return strings.HasPrefix(address, "unix://") }

func isIP(address string) bool {
	_, err := netip.ParseAddr(address)
	return err == nil
}
