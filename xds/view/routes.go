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

// splitRouteName reads "PORT", "HOST:PORT" (of a listener for one service) or a
// socket's path.
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

// egressFor is the place of the egress listener that a route table belongs to: the first one
// for the port, else the one for all; or -1.
func (sc *scope) egressFor(port uint32, name string) int {
	return slices.IndexFunc(sc.egress, func(e *egress) bool {
		return !e.hasPort() || e.listener.GetPort().GetNumber() == port && (port != 0 || e.listener.GetBind() == name)
	})
}

func (sc *scope) catchAll() *CatchAll {
	switch {
	case sc.refuse:
		return &CatchAll{Refuse: true}
	case sc.egressProxy != nil:
		d := sc.egressProxy
		return &CatchAll{Cluster: Outbound(lower(d.GetHost()), d.GetPort().GetNumber(), d.GetSubset())}
	default:
		return &CatchAll{Cluster: ClusterRef{Kind: PassthroughCluster}}
	}
}

// index makes the services be found by name; of several the last one counts.
func (b *tableBuilder) index() {
	for _, svc := range b.e.services {
		if b.port == 0 {
			b.byHost[svc.Hostname] = svc
		} else if at := svc.at(b.port); at != nil {
			b.byHost[svc.Hostname] = at
		}
	}
}

func (b *tableBuilder) build() {
	b.index()
	all := make([]routed, 0, len(b.byHost))
	taken := b.taken
	for _, vs := range b.virtualServices() {
		for _, r := range b.routedBy(vs) {
			all = append(all, r)
			for _, svc := range r.services {
				taken[svc.Hostname] = true
			}
		}
	}
	for _, host := range b.sortedHosts() {
		if taken[host] {
			continue
		}
		svc := b.byHost[host]
		for _, p := range svc.Ports {
			if routable(p) {
				all = append(all, b.defaultRouted(svc, p))
			}
		}
	}
	for _, r := range all {
		for _, svc := range r.services {
			b.known[string(svc.Hostname)] = true
		}
	}
	b.hosts = make([]hostBy, 0, len(all))
	for _, r := range all {
		b.virtualHosts(r)
	}
}

func (b *tableBuilder) sortedHosts() []mesh.Hostname {
	if b.sorted == nil {
		b.sorted = slices.Sorted(maps.Keys(b.byHost))
	}
	return b.sorted
}

// service is the one of a name that the table is for; or nil.
func (b *tableBuilder) service(h mesh.Hostname) *service {
	if b.tableScratch != nil {
		return b.byHost[h]
	}
	for _, svc := range slices.Backward(b.e.services) { // the last one counts
		if svc.Hostname != h {
			continue
		}
		if b.port == 0 {
			return svc
		}
		if at := svc.at(b.port); at != nil {
			return at
		}
	}
	return nil
}

// virtualServices are those that matter for the port. On port 80 those count
// too whose hosts are no services, as in Istio.
func (b *tableBuilder) virtualServices() []*virtualService {
	if b.port == 80 {
		return b.e.virtualServices
	}
	var wildcards []mesh.Hostname
	for h := range b.byHost {
		if h.IsWildcard() {
			wildcards = append(wildcards, h)
		}
	}
	var out []*virtualService
	for _, vs := range b.e.virtualServices {
		if slices.ContainsFunc(vs.hosts, func(h mesh.Hostname) bool { return b.matchesService(h, wildcards) }) {
			out = append(out, vs)
		}
	}
	return out
}

func (b *tableBuilder) matchesService(h mesh.Hostname, wildcards []mesh.Hostname) bool {
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

// routedBy is what a VirtualService does on the table's port, or on every port
// of its services.
func (b *tableBuilder) routedBy(vs *virtualService) []routed {
	routes := b.routesOf(vs)
	if len(routes) == 0 {
		return nil
	}
	hosts, services := b.split(vs)
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
	out := make([]routed, 0, len(ports))
	for _, p := range ports {
		var at []*service
		for _, svc := range services {
			if q, ok := svc.port(p); ok && routable(q) {
				at = append(at, svc)
			}
		}
		out = append(out, routed{port: p, services: at, hosts: hosts, routes: routes, origins: []*mesh.Origin{vs.Origin}, by: vs.Key})
	}
	return out
}

// routable reports whether requests on the port can be seen.
func routable(p mesh.Port) bool { return p.Protocol.IsHTTP() || p.Protocol == mesh.Undeclared }

// split sorts the hosts of a VirtualService into services and plain names.
func (b *tableBuilder) split(vs *virtualService) (hosts []string, services []*service) {
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
			if b.owner == nil {
				b.owner = b.e.owners()
			}
			if b.owner(host) == vs {
				services = append(services, b.byHost[host])
			}
		}
		if !found {
			hosts = append(hosts, string(w))
		}
	}
	return hosts, services
}

func (b *tableBuilder) defaultRouted(svc *service, p mesh.Port) routed {
	return routed{port: p.Number, services: []*service{svc}, routes: []*Route{b.defaultRoute(svc, p.Number)}}
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

func (b *tableBuilder) virtualHosts(r routed) {
	for _, h := range r.hosts {
		b.addHost(r, hostDomains{name: h, domains: []string{bracketed(h)}}, nil)
	}
	for _, svc := range r.services {
		b.addHost(r, b.domainsOf(svc, r.port), svc)
	}
}

// vhostName is Istio's: host and port.
func vhostName(host string, port uint32) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.FormatUint(uint64(port), 10)
}

// hostDomains is a name with all the ways to write it. Those in short are kept
// only where they are not the name of another service.
type hostDomains struct {
	name    string
	domains []string
	short   []string
}

func (b *tableBuilder) addHost(r routed, d hostDomains, svc *service) {
	vh := &VirtualHost{Name: vhostName(d.name, r.port), Routes: r.routes}
	if b.names[vh.Name] {
		b.crowded = true
		return
	}
	b.names[vh.Name] = true
	vh.Domains = make([]string, 0, len(d.domains))
	for _, domain := range d.domains {
		key := strings.ToLower(domain)
		if b.domains[key] || (b.known[domain] && slices.Contains(d.short, domain)) {
			b.crowded = true
			continue
		}
		// On a table for all ports only port 80 is reached without a port.
		if b.port == 0 && r.port != 80 && !strings.Contains(domain, ":") {
			continue
		}
		b.domains[key] = true
		vh.Domains = append(vh.Domains, domain)
	}
	switch len(vh.Domains) {
	case 0:
		return
	case len(d.domains): // the same
		vh.Domains = d.domains
	}
	if have := b.prev.find(vh.Name); have != nil && slices.Equal(have.Domains, vh.Domains) && slices.Equal(have.Routes, vh.Routes) {
		b.hosts = append(b.hosts, hostBy{have, r.by})
		return
	}
	origins := slices.Clone(r.origins)
	if svc != nil {
		origins = append(origins, svc.Origin)
	}
	if r.by == (mesh.Key{}) {
		origins = append(origins, r.routes[0].origins...)
	}
	vh.origins = originsOf(origins...)
	b.hosts = append(b.hosts, hostBy{b.sc.hosts.of(vh), r.by})
}

// domainsIn are the domains of a service for the proxies of a domain, which all
// of them share.
type domainsIn struct {
	of string // the domain; empty if it makes no difference
	hostDomains
}

// domainsInput is what they are made from.
type domainsInput struct {
	svc *mesh.Service
	of  string
}

// build gives the host name, that with a final dot, shorter forms within the
// cluster's domain, and the addresses.
func (in domainsInput) build(*epoch) *domainsIn {
	name := string(in.svc.Hostname)
	d := hostDomains{name: name, domains: []string{bracketed(name)}}
	if !isIP(name) && name != "*" {
		d.short = append(d.short, name+".")
	}
	d.short = append(d.short, shortNames(name, in.of)...)
	d.domains = append(d.domains, d.short...)
	for _, a := range in.svc.Addresses {
		if isIP(a) && a != "0.0.0.0" {
			d.domains = append(d.domains, bracketed(a))
		}
	}
	return &domainsIn{in.of, d}
}

// clusterDomain is the part of a domain that short names depend on; empty if a
// host has none.
func clusterDomain(host, domain string) string {
	if !strings.Contains(host, ".svc.") {
		return ""
	}
	return domain
}

// domainsOf are the names by which a client may ask for a service. A table for one
// port ignores ports; one for all needs them.
func (b *tableBuilder) domainsOf(svc *service, port uint32) hostDomains {
	whole := svc
	if svc.whole != nil {
		whole = svc.whole
	}
	in := domainsInput{whole.Service, clusterDomain(string(svc.Hostname), b.sc.domain)}
	if whole.domains == nil || whole.domains.of != in.of {
		whole.domains = b.sc.domains.of(b.sc.epoch, in)
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

// dnsDomain is the domain in which the proxy's short names are.
func dnsDomain(p *Proxy) string {
	if i := strings.LastIndexByte(p.ID, '~'); i >= 0 && strings.Count(p.ID, "~") == 3 && strings.Contains(p.ID[i+1:], ".svc.") {
		return p.ID[i+1:]
	}
	return p.ServiceAccount.Namespace + ".svc.cluster.local"
}

// shortNames are the forms of NAME.NS.svc.DOMAIN that a client in the domain
// may use.
func shortNames(host, domain string) []string {
	ns, suffix, ok := strings.Cut(domain, ".svc.")
	if !ok || !strings.HasSuffix(host, ".svc."+suffix) {
		return nil
	}
	head := strings.TrimSuffix(host, ".svc."+suffix)
	name, in, ok := strings.Cut(head, ".")
	if !ok {
		return nil
	}
	if in == ns {
		return []string{name, head + ".svc", head}
	}
	return []string{head, head + ".svc"}
}

func bracketed(host string) string {
	if a, err := netip.ParseAddr(host); err == nil && a.Is6() {
		return "[" + host + "]"
	}
	return host
}
