package view

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// tableBuilder makes one RouteTable.
type tableBuilder struct {
	sc *scope
	e  *egress
	// port is the port whose services are in the table; 0 for all, as in a
	// table for an HTTP proxy or a unix socket.
	port    uint32
	byHost  map[mesh.Hostname]*service
	names   map[string]bool
	domains map[string]bool
	known   map[string]bool
	origins []*mesh.Origin
}

// routed is a list of routes with who gets them on one port.
type routed struct {
	port     uint32
	services []*service
	hosts    []string
	routes   []*Route
	origins  []*mesh.Origin
}

// routeTable makes the table that listeners ask for by name.
func (sc *scope) routeTable(name string) *RouteTable {
	sniffed, port := splitRouteName(name)
	e := sc.egressFor(port, name)
	if e == nil {
		return nil
	}
	b := &tableBuilder{
		sc: sc, e: e, port: port,
		byHost: map[mesh.Hostname]*service{}, names: map[string]bool{}, domains: map[string]bool{}, known: map[string]bool{},
	}
	if e.hasPort() && parseProtocol(e.listener.GetPort().GetProtocol()) == mesh.HTTPProxy {
		b.port = 0
	}
	t := &RouteTable{Name: name, Hosts: b.hosts()}
	if sniffed != "" {
		t.Hosts = onlyHost(t.Hosts, sniffed)
	} else if !b.domains["*"] { // Envoy takes one of that name
		t.CatchAll = sc.catchAll()
	}
	slices.SortStableFunc(t.Hosts, func(a, b *VirtualHost) int { return cmp.Compare(a.Name, b.Name) })
	t.hash, t.origins = contentHash("routes", *t), originsOf(b.origins...)
	return t
}

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

func onlyHost(list []*VirtualHost, host string) []*VirtualHost {
	for _, vh := range list {
		if slices.Contains(vh.Domains, host) {
			only := &VirtualHost{Name: vh.Name, Domains: []string{"*"}, Routes: vh.Routes}
			only.origins = vh.origins
			only.hash = contentHash("virtualhost", *only)
			return []*VirtualHost{only}
		}
	}
	return nil
}

// egressFor is the egress listener that a route table belongs to: the first one
// for the port, else the one for all.
func (sc *scope) egressFor(port uint32, name string) *egress {
	for _, e := range sc.egress {
		if !e.hasPort() {
			return e
		}
		if e.listener.GetPort().GetNumber() == port && (port != 0 || e.listener.GetBind() == name) {
			return e
		}
	}
	return nil
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

func (b *tableBuilder) hosts() []*VirtualHost {
	for _, svc := range b.e.services {
		if b.port == 0 {
			b.byHost[svc.Hostname] = svc
		} else if p, ok := svc.port(b.port); ok {
			b.byHost[svc.Hostname] = &service{Service: svc.Service, Ports: []mesh.Port{p}}
		}
	}
	var all []routed
	taken := map[mesh.Hostname]bool{}
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
			if p.Protocol.IsHTTP() || p.Protocol == mesh.Undeclared {
				all = append(all, b.defaultRouted(svc, p))
			}
		}
	}
	for _, r := range all {
		for _, svc := range r.services {
			b.known[string(svc.Hostname)] = true
		}
	}
	var out []*VirtualHost
	for _, r := range all {
		out = append(out, b.virtualHosts(r)...)
	}
	return out
}

func (b *tableBuilder) sortedHosts() []mesh.Hostname {
	out := make([]mesh.Hostname, 0, len(b.byHost))
	for h := range b.byHost {
		out = append(out, h)
	}
	slices.Sort(out)
	return out
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
		if slices.ContainsFunc(vs.Spec.GetHosts(), func(h string) bool { return b.matchesService(lower(h), wildcards) }) {
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
	byPort := map[uint32][]*service{}
	var ports []uint32
	for _, svc := range services {
		for _, p := range svc.Ports {
			if p.Protocol.IsHTTP() || p.Protocol == mesh.Undeclared {
				if byPort[p.Number] == nil {
					ports = append(ports, p.Number)
				}
				byPort[p.Number] = append(byPort[p.Number], svc)
			}
		}
	}
	if len(ports) == 0 && b.port == 80 {
		ports = []uint32{80}
	}
	slices.Sort(ports)
	out := make([]routed, 0, len(ports))
	for _, p := range ports {
		out = append(out, routed{port: p, services: byPort[p], hosts: hosts, routes: routes, origins: []*mesh.Origin{vs.Origin}})
	}
	return out
}

// split sorts the hosts of a VirtualService into services and plain names.
func (b *tableBuilder) split(vs *virtualService) (hosts []string, services []*service) {
	var wildcards []mesh.Hostname
	for _, name := range vs.Spec.GetHosts() {
		h := lower(name)
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
			if b.e.owner[host] == vs {
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
	dr := b.sc.rule(svc.Hostname)
	route := &Route{
		Port: p.Number,
		Destinations: []RouteDestination{{
			Cluster: Outbound(svc.Hostname, p.Number, ""),
			Hash:    dr.serviceHash(p.Number),
		}},
		Retry: b.sc.s.MeshConfig.Spec.GetDefaultHttpRetryPolicy(),
	}
	origins := []*mesh.Origin{svc.Origin}
	if dr != nil && route.Destinations[0].Hash != nil {
		origins = append(origins, dr.origins...)
	}
	route.hash, route.origins = contentHash("route", *route), originsOf(origins...)
	return routed{port: p.Number, services: []*service{svc}, routes: []*Route{route}, origins: origins}
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

func (b *tableBuilder) virtualHosts(r routed) []*VirtualHost {
	var out []*VirtualHost
	for _, h := range r.hosts {
		domains := []string{bracketed(h)}
		out = b.appendHost(out, r, hostDomains{name: h, domains: domains}, nil)
	}
	for _, svc := range r.services {
		out = b.appendHost(out, r, b.domainsOf(svc, r.port), svc)
	}
	return out
}

// hostDomains is a name with all the ways to write it. Those in short are kept
// only where they are not the name of another service.
type hostDomains struct {
	name    string
	domains []string
	short   []string
}

func (b *tableBuilder) appendHost(out []*VirtualHost, r routed, d hostDomains, svc *service) []*VirtualHost {
	vh := &VirtualHost{Name: d.name + ":" + strconv.FormatUint(uint64(r.port), 10), Routes: r.routes}
	if strings.Contains(d.name, ":") {
		vh.Name = "[" + d.name + "]:" + strconv.FormatUint(uint64(r.port), 10)
	}
	if b.names[vh.Name] {
		return out
	}
	b.names[vh.Name] = true
	for _, domain := range d.domains {
		key := strings.ToLower(domain)
		if b.domains[key] || (slices.Contains(d.short, domain) && b.known[domain]) {
			continue
		}
		// On a table for all ports only port 80 is reached without a port.
		if b.port == 0 && r.port != 80 && !strings.Contains(domain, ":") {
			continue
		}
		b.domains[key] = true
		vh.Domains = append(vh.Domains, domain)
	}
	if len(vh.Domains) == 0 {
		return out
	}
	origins := r.origins
	if svc != nil {
		origins = append(slices.Clone(origins), svc.Origin)
	}
	vh.hash, vh.origins = contentHash("virtualhost", *vh), originsOf(origins...)
	b.origins = append(b.origins, vh.origins...)
	return append(out, vh)
}

// domainsOf are the names by which a client may ask for a service: its host
// name, that with a final dot, shorter forms within the cluster's domain, and
// its addresses. A table for one port ignores ports; one for all needs them.
func (b *tableBuilder) domainsOf(svc *service, port uint32) hostDomains {
	name := string(svc.Hostname)
	d := hostDomains{name: name, domains: []string{bracketed(name)}}
	if !isIP(name) && name != "*" {
		d.short = append(d.short, name+".")
	}
	d.short = append(d.short, shortNames(name, b.sc.dnsDomain())...)
	d.domains = append(d.domains, d.short...)
	for _, a := range svc.Addresses {
		if isIP(a) && a != "0.0.0.0" {
			d.domains = append(d.domains, bracketed(a))
		}
	}
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
func (st *site) dnsDomain() string {
	if parts := strings.Split(st.proxy.ID, "~"); len(parts) == 4 && strings.Contains(parts[3], ".svc.") {
		return parts[3]
	}
	return st.namespace() + ".svc.cluster.local"
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
