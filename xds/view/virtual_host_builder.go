package view

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// splitRouteName reads the name of a route configuration: "PORT", "HOST:PORT" (of a
// listener for one service) or the path of a Unix socket.
func splitRouteName(name string) (host string, port uint32) {
	if isUnix(name) {
		return "", 0
	}
	h, p, ok := cutLast(name, ":")
	if !ok {
		p = name
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return "", 0
	}
	return h, uint32(n)
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return "", s, false
}

// egressFor is the index of the egress listener of a route configuration: the first one for
// the port, else the one for all; or -1.
func (sc *sidecarScope) egressFor(port uint32, name string) int {
	return slices.IndexFunc(sc.egress, func(e *egressListener) bool {
		return !e.hasPort() || e.spec.GetPort().GetNumber() == port && (port != 0 || e.spec.GetBind() == name)
	})
}

func (sc *sidecarScope) catchAll() *CatchAll {
	switch {
	case sc.registryOnly:
		return &CatchAll{Refuse: true}
	case sc.egressProxy != nil:
		d := sc.egressProxy
		return &CatchAll{Cluster: Outbound(lower(d.GetHost()), d.GetPort().GetNumber(), d.GetSubset())}
	default:
		return &CatchAll{Cluster: ClusterRef{Kind: PassthroughCluster}}
	}
}

// indexServices indexes the services by host name. Of several with one name, the last one
// is used.
func (b *virtualHostBuilder) indexServices() {
	for _, svc := range b.egress.services {
		if b.port == 0 {
			b.byHost[svc.Hostname] = svc
		} else if at := svc.onPort(b.port); at != nil {
			b.byHost[svc.Hostname] = at
		}
	}
}

func (b *virtualHostBuilder) build() {
	b.indexServices()
	all := make([]hostRoutes, 0, len(b.byHost))
	routed := b.routedServices
	for _, vs := range b.virtualServices() {
		for _, r := range b.hostRoutesOf(vs) {
			all = append(all, r)
			for _, svc := range r.services {
				routed[svc.Hostname] = true
			}
		}
	}
	for _, host := range b.sortedHosts() {
		if routed[host] {
			continue
		}
		svc := b.byHost[host]
		for _, p := range svc.Ports {
			if routable(p) {
				all = append(all, b.defaultHostRoutes(svc, p))
			}
		}
	}
	for _, r := range all {
		for _, svc := range r.services {
			b.serviceHosts[string(svc.Hostname)] = true
		}
	}
	b.hosts = make([]builtHost, 0, len(all))
	for _, r := range all {
		b.virtualHosts(r)
	}
}

func (b *virtualHostBuilder) sortedHosts() []mesh.Hostname {
	if b.sorted == nil {
		b.sorted = slices.Sorted(maps.Keys(b.byHost))
	}
	return b.sorted
}

// service returns the service of a host; or nil.
func (b *virtualHostBuilder) service(h mesh.Hostname) *service {
	if b.gateway != nil {
		return b.sc.serviceFor(b.namespace, h)
	}
	if b.builderScratch != nil {
		return b.byHost[h]
	}
	for _, svc := range slices.Backward(b.egress.services) { // the last one is used
		if svc.Hostname != h {
			continue
		}
		if b.port == 0 {
			return svc
		}
		if at := svc.onPort(b.port); at != nil {
			return at
		}
	}
	return nil
}

// virtualServices are those that matter for the port. On port 80 these include
// VirtualServices whose hosts are not services, as in Istio.
func (b *virtualHostBuilder) virtualServices() []*virtualService {
	if b.port == 80 {
		return b.egress.virtualServices
	}
	var wildcards []mesh.Hostname
	for h := range b.byHost {
		if h.IsWildcard() {
			wildcards = append(wildcards, h)
		}
	}
	var out []*virtualService
	for _, vs := range b.egress.virtualServices {
		if slices.ContainsFunc(vs.hosts, func(h mesh.Hostname) bool { return b.matchesService(h, wildcards) }) {
			out = append(out, vs)
		}
	}
	return out
}

func (b *virtualHostBuilder) matchesService(h mesh.Hostname, wildcards []mesh.Hostname) bool {
	if b.byHost[h] != nil {
		return true
	}
	if !h.IsWildcard() {
		return slices.ContainsFunc(wildcards, h.Overlaps)
	}
	for host := range b.byHost {
		if h.Overlaps(host) {
			return true
		}
	}
	return false
}

// hostRoutesOf returns the routes of a VirtualService on the builder's port, or on every
// port of its services.
func (b *virtualHostBuilder) hostRoutesOf(vs *virtualService) []hostRoutes {
	routes := b.routesOf(vs)
	if len(routes) == 0 {
		return nil
	}
	hosts, services := b.splitHosts(vs)
	var ports []uint32
	for _, svc := range services {
		for _, p := range svc.Ports {
			if routable(p) && !slices.Contains(ports, p.Number) {
				ports = append(ports, p.Number)
			}
		}
	}
	if len(ports) == 0 && b.port == 80 {
		ports = []uint32{80}
	}
	slices.Sort(ports)
	out := make([]hostRoutes, 0, len(ports))
	for _, p := range ports {
		var at []*service
		for _, svc := range services {
			if q, ok := svc.port(p); ok && routable(q) {
				at = append(at, svc)
			}
		}
		out = append(out, hostRoutes{port: p, services: at, hosts: hosts, routes: routes, origins: []*mesh.Origin{vs.Origin}, source: vs.Key})
	}
	return out
}

// routable reports whether the port may carry HTTP requests.
func routable(p mesh.Port) bool { return p.Protocol.IsHTTP() || p.Protocol == mesh.Undeclared }

// splitHosts splits the hosts of a VirtualService into services and other names.
func (b *virtualHostBuilder) splitHosts(vs *virtualService) (hosts []string, services []*service) {
	var wildcards []mesh.Hostname
	for _, h := range vs.hosts {
		switch svc := b.byHost[h]; {
		case h.IsWildcard():
			wildcards = append(wildcards, h)
		case svc != nil:
			services = append(services, svc)
		default:
			hosts = append(hosts, string(h))
		}
	}
	for _, w := range wildcards {
		found := false
		for _, host := range b.sortedHosts() {
			if !host.Overlaps(w) {
				continue
			}
			found = true
			if b.virtualServiceFor == nil {
				b.virtualServiceFor = b.egress.virtualServiceFinder()
			}
			if b.virtualServiceFor(host) == vs {
				services = append(services, b.byHost[host])
			}
		}
		if !found {
			hosts = append(hosts, string(w))
		}
	}
	return hosts, services
}

func (b *virtualHostBuilder) defaultHostRoutes(svc *service, p mesh.Port) hostRoutes {
	return hostRoutes{port: p.Number, services: []*service{svc}, routes: []*Route{b.defaultRoute(svc, p.Number)}}
}

// serviceHash is the consistent hash for a service without a VirtualService.
func (r *rule) serviceHash(port uint32) *networking.LoadBalancerSettings_ConsistentHashLB {
	if r == nil {
		return nil
	}
	if h := portHash(r.spec.GetTrafficPolicy(), port); h != nil {
		return h
	}
	return r.spec.GetTrafficPolicy().GetLoadBalancer().GetConsistentHash()
}

func (b *virtualHostBuilder) virtualHosts(r hostRoutes) {
	for _, h := range r.hosts {
		b.addHost(r, hostDomains{name: h, domains: []string{bracketed(h)}}, nil)
	}
	for _, svc := range r.services {
		b.addHost(r, b.domainsOf(svc, r.port), svc)
	}
}

// vhostName is Istio's name: host and port.
func vhostName(host string, port uint32) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.FormatUint(uint64(port), 10)
}

// hostDomains is a host name with all its spellings. Those in shortNames are used only if
// no other service has that name.
type hostDomains struct {
	name       string
	domains    []string
	shortNames []string
}

func (b *virtualHostBuilder) addHost(r hostRoutes, d hostDomains, svc *service) {
	vh := &VirtualHost{Name: vhostName(d.name, r.port), Routes: r.routes, NoAttemptCount: b.sc.headers.noAttemptCount()}
	if b.names[vh.Name] {
		b.hasConflict = true
		return
	}
	b.names[vh.Name] = true
	vh.Domains = make([]string, 0, len(d.domains))
	for _, domain := range d.domains {
		key := strings.ToLower(domain)
		if b.domains[key] || (b.serviceHosts[domain] && slices.Contains(d.shortNames, domain)) {
			b.hasConflict = true
			continue
		}
		// In a route configuration for all ports, a domain without a port means port 80.
		if b.port == 0 && r.port != 80 && !strings.Contains(domain, ":") {
			continue
		}
		b.domains[key] = true
		vh.Domains = append(vh.Domains, domain)
	}
	switch len(vh.Domains) {
	case 0:
		return
	case len(d.domains): // all of them: share the slice
		vh.Domains = d.domains
	}
	if have := b.prev.find(vh.Name); have != nil && slices.Equal(have.Domains, vh.Domains) && slices.Equal(have.Routes, vh.Routes) {
		b.hosts = append(b.hosts, builtHost{have, r.source})
		return
	}
	origins := slices.Clone(r.origins)
	if svc != nil {
		origins = append(origins, svc.Origin)
	}
	if r.source == (mesh.Key{}) {
		origins = append(origins, r.routes[0].origins...)
	}
	vh.origins = originsOf(origins...)
	b.hosts = append(b.hosts, builtHost{b.sc.virtualHosts.intern(vh), r.source})
}

// serviceDomains are the domains of a service for proxies of one DNS domain, which share
// them.
type serviceDomains struct {
	domain    string // empty if it makes no difference
	addresses addressKind
	hostDomains
}

// serviceDomainsInput is what serviceDomains are made from.
type serviceDomainsInput struct {
	svc       *mesh.Service
	domain    string
	addresses addressKind
}

// build returns the host name, the host name with a final dot, its short forms within the
// cluster's domain, and the addresses.
func (in serviceDomainsInput) build(mc *meshContext) *serviceDomains {
	name := string(in.svc.Hostname)
	d := hostDomains{name: name, domains: []string{bracketed(name)}}
	if !isIP(name) && name != "*" {
		d.shortNames = append(d.shortNames, name+".")
	}
	d.shortNames = append(d.shortNames, in.svc.ShortNames(in.domain)...)
	d.domains = append(d.domains, d.shortNames...)
	for _, a := range in.addresses.of(mc.settings, in.svc) {
		if isIP(a) && a != "0.0.0.0" {
			d.domains = append(d.domains, bracketed(a))
		}
	}
	return &serviceDomains{in.domain, in.addresses, d}
}

// clusterDomain is the domain that the short names of a host depend on; empty if the host
// has none.
func clusterDomain(host, domain string) string {
	if !strings.Contains(host, ".svc.") {
		return ""
	}
	return domain
}

// domainsOf are the names under which a client may ask for a service. A route configuration
// for one port ignores ports in the names; one for all ports needs them.
func (b *virtualHostBuilder) domainsOf(svc *service, port uint32) hostDomains {
	whole := svc
	if svc.full != nil {
		whole = svc.full
	}
	in := serviceDomainsInput{whole.Service, clusterDomain(string(svc.Hostname), b.sc.domain), b.sc.addressKindOf(whole.Service)}
	if whole.domains == nil || whole.domains.domain != in.domain || whole.domains.addresses != in.addresses {
		whole.domains = b.sc.serviceDomains.get(b.sc.meshContext, in)
	}
	d := whole.domains.hostDomains
	if b.port == 0 {
		with := make([]string, 0, 2*len(d.domains))
		for _, x := range d.domains {
			with = append(with, x, x+":"+strconv.FormatUint(uint64(port), 10))
		}
		d.domains = with
	}
	return d
}

// dnsDomain is the DNS domain of the proxy's short names.
func dnsDomain(p *Proxy) string {
	if i := strings.LastIndexByte(p.ID, '~'); i >= 0 && strings.Count(p.ID, "~") == 3 && strings.Contains(p.ID[i+1:], ".svc.") {
		return p.ID[i+1:]
	}
	return p.ServiceAccount.Namespace + ".svc.cluster.local"
}

func bracketed(host string) string {
	if a, err := netip.ParseAddr(host); err == nil && a.Is6() {
		return "[" + host + "]"
	}
	return host
}
