package view

import (
	"cmp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// site is a proxy in a mesh, with the Sidecar that is for it.
type site struct {
	*Index
	proxy   Proxy
	sidecar *mesh.Sidecar // or nil
	domain  string        // in which the proxy's short names are
}

func (x *Index) site(p Proxy) *site {
	return &site{Index: x, proxy: p, sidecar: x.sidecars.find(&p), domain: dnsDomain(&p)}
}

func (st *site) namespace() string { return st.proxy.ServiceAccount.Namespace }

// scope is what one proxy may see, before it becomes parts (Istio's
// SidecarScope).
type scope struct {
	*site
	egress []*egress
	// services are those of all egress listeners and of the routes in them, one
	// for a host name, sorted by host name. These alone have their rule.
	services []*service
	// refuse means that unknown destinations are refused (REGISTRY_ONLY).
	refuse bool
	// egressProxy takes traffic to unknown destinations; or nil.
	egressProxy *networking.Destination
}

// service is a service as a proxy sees it: perhaps with fewer ports.
type service struct {
	*mesh.Service
	Ports []mesh.Port
	rule  *rule // or nil

	// whole is the service of which this is one port; or nil.
	whole *service
	// domains are kept for the next list of hosts; or nil.
	domains *domainsIn
}

// at is the service with one port of it alone; or nil.
func (s *service) at(port uint32) *service {
	p, ok := s.port(port)
	switch {
	case !ok:
		return nil
	case len(s.Ports) == 1:
		return s
	default:
		return &service{Service: s.Service, Ports: []mesh.Port{p}, whole: s}
	}
}

func (s *service) port(number uint32) (mesh.Port, bool) {
	for _, p := range s.Ports {
		if p.Number == number {
			return p, true
		}
	}
	return mesh.Port{}, false
}

// egress is one egress listener of a Sidecar with what it imports.
type egress struct {
	listener        *networking.IstioEgressListener
	filters         map[string]*hostFilter // by namespace
	services        []*service
	virtualServices []*virtualService
}

// hasPort reports whether the listener is for one port, or one socket.
func (e *egress) hasPort() bool { return e.listener.GetPort() != nil }

// newScope works out a scope. prev is the one of before, or nil; it is of no use
// any more.
func newScope(st *site, prev *scope) *scope {
	sc := &scope{site: st}
	var spec *networking.Sidecar
	if sc.sidecar != nil {
		spec = sc.sidecar.Spec
	}
	listeners := spec.GetEgress()
	if len(listeners) == 0 {
		listeners = []*networking.IstioEgressListener{{Hosts: []string{"*/*"}}}
	}
	services := sc.visibleServices(sc.namespace())
	virtualServices := sc.visibleVirtualServices(sc.namespace())
	for i, l := range listeners {
		e := sc.newEgress(l, services, virtualServices)
		if prev != nil && len(prev.egress) == len(listeners) {
			e.takeOver(prev.egress[i])
		}
		sc.egress = append(sc.egress, e)
	}
	sc.collectServices()
	sc.refuse = sc.config.GetOutboundTrafficPolicy().GetMode().String() == "REGISTRY_ONLY"
	if otp := spec.GetOutboundTrafficPolicy(); otp != nil {
		sc.refuse = otp.GetMode() == networking.OutboundTrafficPolicy_REGISTRY_ONLY
		if !sc.refuse {
			sc.egressProxy = otp.GetEgressProxy()
		}
	}
	return sc
}

// find is the service of a name, if the proxy has clusters for it; or nil.
func (sc *scope) find(host mesh.Hostname) *service {
	if i, ok := slices.BinarySearchFunc(sc.services, host, compareHosts); ok {
		return sc.services[i]
	}
	return nil
}

// rule is the DestinationRule for a host, as this proxy sees it; or nil. Only
// hosts in the scope have one.
func (sc *scope) rule(host mesh.Hostname) *rule {
	if svc := sc.find(host); svc != nil {
		return svc.rule
	}
	return nil
}

func (sc *scope) lookupRule(svc *service) *rule {
	return sc.rules.lookup(sc.namespace(), sc.proxy.Labels, svc.Hostname, svc.Namespace)
}

// hostFilter is the hosts of an egress listener for one namespace.
type hostFilter struct{ hosts, excluded []mesh.Hostname }

func (f *hostFilter) excludes(h mesh.Hostname) bool {
	return f != nil && slices.ContainsFunc(f.excluded, func(x mesh.Hostname) bool { return x.Covers(h) })
}

func (f *hostFilter) importsService(h mesh.Hostname) bool {
	return f != nil && slices.ContainsFunc(f.hosts, func(i mesh.Hostname) bool { return i.Covers(h) })
}

func (f *hostFilter) importsRoutes(h mesh.Hostname) bool {
	return f != nil && slices.ContainsFunc(f.hosts, func(i mesh.Hostname) bool { return i.Overlaps(h) })
}

func (sc *scope) hostFilters(l *networking.IstioEgressListener) map[string]*hostFilter {
	out := map[string]*hostFilter{}
	for _, entry := range l.GetHosts() {
		ns, host, ok := strings.Cut(entry, "/")
		if !ok {
			continue
		}
		excluded := len(ns) > 1 && ns[0] == '~'
		if excluded {
			ns = ns[1:]
		}
		switch ns {
		case "~":
			continue
		case ".":
			ns = sc.namespace()
		}
		f := out[ns]
		if f == nil {
			f = &hostFilter{}
			out[ns] = f
		}
		if excluded {
			f.excluded = append(f.excluded, mesh.Hostname(host))
		} else {
			f.hosts = append(f.hosts, mesh.Hostname(host))
		}
	}
	return out
}

// importsRoutes reports whether the listener takes a VirtualService that the
// namespace sees.
func (e *egress) importsRoutes(vs *virtualService) bool {
	own, all := e.filters[vs.Namespace], e.filters["*"]
	return slices.ContainsFunc(vs.hosts, func(host mesh.Hostname) bool {
		return !own.excludes(host) && !all.excludes(host) && (own.importsRoutes(host) || all.importsRoutes(host))
	})
}

// importsService reports whether the listener takes a service that the namespace
// sees.
func (e *egress) importsService(svc *mesh.Service) bool {
	own, all := e.filters[svc.Namespace], e.filters["*"]
	return !own.excludes(svc.Hostname) && !all.excludes(svc.Hostname) &&
		(own.importsService(svc.Hostname) || all.importsService(svc.Hostname))
}

// wants reports whether a service has a place in the scope, if the namespace
// sees it.
func (sc *scope) wants(svc *mesh.Service) bool {
	for _, e := range sc.egress {
		if e.importsService(svc) {
			return true
		}
	}
	for _, e := range sc.egress {
		for _, vs := range e.virtualServices {
			if _, ok := slices.BinarySearchFunc(vs.destinations(sc.namespace()), svc.Hostname, compareTo); ok {
				return true
			}
		}
	}
	return false
}

func compareTo(r routeTo, h mesh.Hostname) int { return cmp.Compare(r.host, h) }

func (sc *scope) newEgress(l *networking.IstioEgressListener, services []*mesh.Service, routes []*virtualService) *egress {
	e := &egress{listener: l, filters: sc.hostFilters(l)}
	for _, vs := range routes {
		if e.importsRoutes(vs) {
			e.virtualServices = append(e.virtualServices, vs)
		}
	}
	onlyPort := uint32(0)
	if n := l.GetPort().GetNumber(); n != 0 && parseProtocol(l.GetPort().GetProtocol()) != mesh.HTTPProxy {
		onlyPort = n
	}
	chosen := map[mesh.Hostname]string{} // the namespace that a host name is taken from
	for _, svc := range services {
		if !e.importsService(svc) {
			continue
		}
		seen := &service{Service: svc, Ports: svc.Ports}
		if onlyPort != 0 {
			p, ok := svc.Port(onlyPort)
			if !ok {
				continue
			}
			seen.Ports = []mesh.Port{p}
		}
		e.services = append(e.services, seen)
		if _, ok := chosen[svc.Hostname]; !ok || svc.Namespace == sc.namespace() {
			chosen[svc.Hostname] = svc.Namespace
		}
	}
	e.services = slices.DeleteFunc(e.services, func(s *service) bool { return chosen[s.Hostname] != s.Namespace })
	return e
}

// takeOver keeps what is known of services that are the same.
func (e *egress) takeOver(prev *egress) {
	old := prev.services
	for _, s := range e.services {
		i := slices.IndexFunc(old, func(o *service) bool { return o.Service == s.Service })
		if i >= 0 {
			s.domains, old = old[i].domains, old[i+1:]
		}
	}
}

// owners are the VirtualServices with the most specific host for a service, as
// one asks for them.
func (e *egress) owners() func(mesh.Hostname) *virtualService {
	byHost := map[mesh.Hostname]*virtualService{}
	var wildcards []mesh.Hostname
	for _, vs := range e.virtualServices {
		for _, host := range vs.hosts {
			if byHost[host] == nil {
				byHost[host] = vs
				if host.IsWildcard() {
					wildcards = append(wildcards, host)
				}
			}
		}
	}
	return func(h mesh.Hostname) *virtualService {
		if vs := byHost[h]; vs != nil {
			return vs
		}
		if w, ok := mostSpecific(h, wildcards); ok {
			return byHost[w]
		}
		return nil
	}
}

// collectServices gathers what the proxy needs clusters for: what its listeners
// import, and what the routes in them lead to.
func (sc *scope) collectServices() {
	byHost := make(collection, len(sc.egress[0].services))
	for _, e := range sc.egress {
		for _, svc := range e.services {
			byHost.add(svc)
		}
		for _, vs := range e.virtualServices {
			for _, to := range vs.destinations(sc.namespace()) {
				if svc := sc.destination(to); svc != nil {
					byHost.add(svc)
				}
			}
		}
	}
	sc.services = make([]*service, 0, len(byHost))
	for _, svc := range byHost {
		svc.rule = sc.lookupRule(svc)
		sc.services = append(sc.services, svc)
	}
	slices.SortFunc(sc.services, func(a, b *service) int { return cmp.Compare(a.Hostname, b.Hostname) })
}

// destination is the service that a route leads to, with the ports that it
// names.
func (sc *scope) destination(to routeTo) *service {
	var best *mesh.Service
	for _, svc := range sc.s.ServicesOn(to.host) {
		if svc.Namespace == sc.namespace() && !sc.s.Shadowed(svc, sc.namespace()) {
			best = svc
			break
		}
		if best == nil && sc.seesService(svc, sc.namespace()) {
			best = svc
		}
	}
	if best == nil {
		return nil
	}
	seen := &service{Service: best, Ports: best.Ports}
	if slices.Contains(to.ports, 0) {
		return seen
	}
	seen.Ports = nil
	for _, p := range best.Ports {
		if slices.Contains(to.ports, p.Number) {
			seen.Ports = append(seen.Ports, p)
		}
	}
	if len(seen.Ports) == 0 {
		return nil
	}
	return seen
}

// collection is services by host name.
type collection map[mesh.Hostname]*service

// add adds a service, or its ports to the one of that name that is there
// already if both are of one namespace and kind.
func (c collection) add(s *service) {
	have := c[s.Hostname]
	if have == nil {
		c[s.Hostname] = s
		return
	}
	if have.Namespace != s.Namespace || have.Resolution != s.Resolution || !slices.Equal(have.ExportTo, s.ExportTo) {
		return
	}
	merged := &service{Service: have.Service, Ports: slices.Clip(have.Ports)}
	for _, p := range s.Ports {
		if _, ok := merged.port(p.Number); !ok {
			merged.Ports = append(merged.Ports, p)
		}
	}
	if len(merged.Ports) > len(have.Ports) {
		c[s.Hostname] = merged
	}
}

// destinationsOf are the hosts that a VirtualService leads to, with the ports
// it names; sorted by host.
func destinationsOf(vs *virtualService, ns string) []routeTo {
	byHost := map[mesh.Hostname][]uint32{}
	add := func(d *networking.Destination) {
		if d != nil {
			h := lower(d.GetHost())
			byHost[h] = append(byHost[h], d.GetPort().GetNumber())
		}
	}
	for _, r := range vs.http {
		if !fromNamespace(r.GetMatch(), ns) {
			continue
		}
		for _, d := range r.GetRoute() {
			add(d.GetDestination())
		}
		add(r.GetMirror())
		for _, m := range r.GetMirrors() {
			add(m.GetDestination())
		}
	}
	for _, r := range vs.Spec.GetTcp() {
		for _, d := range r.GetRoute() {
			add(d.GetDestination())
		}
	}
	for _, r := range vs.Spec.GetTls() {
		for _, d := range r.GetRoute() {
			add(d.GetDestination())
		}
	}
	out := make([]routeTo, 0, len(byHost))
	for h, ports := range byHost {
		slices.Sort(ports)
		out = append(out, routeTo{h, slices.Compact(ports)})
	}
	slices.SortFunc(out, func(a, b routeTo) int { return cmp.Compare(a.host, b.host) })
	return out
}

func fromNamespace(match []*networking.HTTPMatchRequest, ns string) bool {
	ok := true
	for _, m := range match {
		switch m.GetSourceNamespace() {
		case "":
		case ns:
			return true
		default:
			ok = false
		}
	}
	return ok
}

func lower(h string) mesh.Hostname { return mesh.Hostname(strings.ToLower(h)) }

// parseProtocol reads a protocol as Sidecars write it; an unknown one is
// undeclared.
func parseProtocol(s string) mesh.Protocol {
	p := mesh.Protocol(strings.ToUpper(s))
	switch p {
	case mesh.HTTP, mesh.HTTPProxy, mesh.HTTP2, mesh.GRPC, mesh.GRPCWeb, mesh.HTTPS, mesh.TLS, mesh.TCP,
		mesh.UDP, mesh.Mongo, mesh.Redis, mesh.MySQL, mesh.Undeclared:
		return p
	default:
		return mesh.Undeclared
	}
}
