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
}

func (x *Index) site(p Proxy) *site {
	st := &site{Index: x, proxy: p}
	st.sidecar = st.selectSidecar()
	return st
}

func (st *site) namespace() string { return st.proxy.ServiceAccount.Namespace }

// scope is what one proxy may see, before it becomes parts (Istio's
// SidecarScope).
type scope struct {
	*site
	egress []*egress
	// services are those of all egress listeners and of the routes in them, one
	// for a host name, sorted by host name.
	services []*service
	byHost   map[mesh.Hostname]*service
	// refuse means that unknown destinations are refused (REGISTRY_ONLY).
	refuse bool
	// egressProxy takes traffic to unknown destinations; or nil.
	egressProxy *networking.Destination
	rules       map[mesh.Hostname]*rule
}

// service is a service as a proxy sees it: perhaps with fewer ports.
type service struct {
	*mesh.Service
	Ports []mesh.Port
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
	services        []*service
	virtualServices []*virtualService
	// owner is the VirtualService with the most specific host for a service.
	owner map[mesh.Hostname]*virtualService
}

// hasPort reports whether the listener is for one port, or one socket.
func (e *egress) hasPort() bool { return e.listener.GetPort() != nil }

func newScope(st *site) *scope {
	sc := &scope{site: st, byHost: map[mesh.Hostname]*service{}, rules: map[mesh.Hostname]*rule{}}
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
	for _, l := range listeners {
		sc.egress = append(sc.egress, sc.newEgress(l, services, virtualServices))
	}
	sc.collectServices(services)
	sc.refuse = sc.s.MeshConfig.Spec.GetOutboundTrafficPolicy().GetMode().String() == "REGISTRY_ONLY"
	if otp := spec.GetOutboundTrafficPolicy(); otp != nil {
		sc.refuse = otp.GetMode() == networking.OutboundTrafficPolicy_REGISTRY_ONLY
		if !sc.refuse {
			sc.egressProxy = otp.GetEgressProxy()
		}
	}
	return sc
}

// selectSidecar finds the Sidecar of the proxy: of its namespace one that
// selects it, else one for all, else the root namespace's.
func (st *site) selectSidecar() *mesh.Sidecar {
	if st.proxy.Type == Router {
		return nil
	}
	var forNamespace, forMesh *mesh.Sidecar
	for _, s := range st.s.Sidecars {
		selector := s.Spec.GetWorkloadSelector()
		switch {
		case s.Namespace == st.namespace() && selector != nil:
			if mesh.Selects(selector.GetLabels(), st.proxy.Labels) {
				return s
			}
		case s.Namespace == st.namespace():
			forNamespace = cmp.Or(forNamespace, s)
		case s.Namespace == st.s.RootNamespace() && selector == nil:
			forMesh = cmp.Or(forMesh, s)
		}
	}
	return cmp.Or(forNamespace, forMesh)
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

func (sc *scope) newEgress(l *networking.IstioEgressListener, services []*mesh.Service, routes []*virtualService) *egress {
	e := &egress{listener: l, owner: map[mesh.Hostname]*virtualService{}}
	filters := sc.hostFilters(l)
	all := filters["*"]
	for _, vs := range routes {
		own := filters[vs.Namespace]
		for _, h := range vs.Spec.GetHosts() {
			host := lower(h)
			if own.excludes(host) || all.excludes(host) || (!own.importsRoutes(host) && !all.importsRoutes(host)) {
				continue
			}
			e.virtualServices = append(e.virtualServices, vs)
			break
		}
	}
	onlyPort := uint32(0)
	if n := l.GetPort().GetNumber(); n != 0 && parseProtocol(l.GetPort().GetProtocol()) != mesh.HTTPProxy {
		onlyPort = n
	}
	chosen := map[mesh.Hostname]string{} // the namespace that a host name is taken from
	for _, svc := range services {
		own := filters[svc.Namespace]
		if own.excludes(svc.Hostname) || all.excludes(svc.Hostname) ||
			(!own.importsService(svc.Hostname) && !all.importsService(svc.Hostname)) {
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
	e.indexOwners()
	return e
}

func (e *egress) indexOwners() {
	byHost := map[mesh.Hostname]*virtualService{}
	var hosts []mesh.Hostname
	for _, vs := range e.virtualServices {
		for _, h := range vs.Spec.GetHosts() {
			if host := lower(h); byHost[host] == nil {
				byHost[host] = vs
				hosts = append(hosts, host)
			}
		}
	}
	for _, svc := range e.services {
		if h, ok := mostSpecific(svc.Hostname, hosts); ok {
			e.owner[svc.Hostname] = byHost[h]
		}
	}
}

// collectServices gathers what the proxy needs clusters for: what its listeners
// import, and what the routes in them lead to.
func (sc *scope) collectServices(visibleServices []*mesh.Service) {
	for _, e := range sc.egress {
		for _, svc := range e.services {
			sc.addService(svc)
		}
		for _, vs := range e.virtualServices {
			dests := destinationsOf(vs, sc.namespace())
			hosts := make([]mesh.Hostname, 0, len(dests))
			for h := range dests {
				hosts = append(hosts, h)
			}
			slices.Sort(hosts)
			for _, h := range hosts {
				sc.addDestination(h, dests[h], visibleServices)
			}
		}
	}
	for _, svc := range sc.byHost {
		sc.services = append(sc.services, svc)
	}
	slices.SortFunc(sc.services, func(a, b *service) int { return cmp.Compare(a.Hostname, b.Hostname) })
}

func (sc *scope) addDestination(h mesh.Hostname, ports []uint32, visibleServices []*mesh.Service) {
	var best *mesh.Service
	for _, svc := range sc.s.ServicesOn(h) {
		if svc.Namespace == sc.namespace() {
			best = svc
			break
		}
		if best == nil && slices.Contains(visibleServices, svc) {
			best = svc
		}
	}
	if best == nil {
		return
	}
	seen := &service{Service: best, Ports: best.Ports}
	if !slices.Contains(ports, 0) {
		seen.Ports = nil
		for _, p := range best.Ports {
			if slices.Contains(ports, p.Number) {
				seen.Ports = append(seen.Ports, p)
			}
		}
		if len(seen.Ports) == 0 {
			return
		}
	}
	sc.addService(seen)
}

// addService adds a service, or its ports to the one of that name that is there
// already if both are of one namespace and kind.
func (sc *scope) addService(s *service) {
	have := sc.byHost[s.Hostname]
	if have == nil {
		sc.byHost[s.Hostname] = s
		return
	}
	if have.Namespace != s.Namespace || have.Resolution != s.Resolution || !slices.Equal(have.ExportTo, s.ExportTo) {
		return
	}
	merged := &service{Service: have.Service, Ports: slices.Clone(have.Ports)}
	for _, p := range s.Ports {
		if _, ok := merged.port(p.Number); !ok {
			merged.Ports = append(merged.Ports, p)
		}
	}
	if len(merged.Ports) > len(have.Ports) {
		sc.byHost[s.Hostname] = merged
	}
}

// destinationsOf are the hosts that a VirtualService leads to, with the ports
// it names; 0 is for one without a port.
func destinationsOf(vs *virtualService, ns string) map[mesh.Hostname][]uint32 {
	out := map[mesh.Hostname][]uint32{}
	add := func(d *networking.Destination) {
		if d != nil {
			h := lower(d.GetHost())
			out[h] = append(out[h], d.GetPort().GetNumber())
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

// rule is the DestinationRule for a host, as this proxy sees it; or nil. Only
// hosts in the scope have one.
func (sc *scope) rule(host mesh.Hostname) *rule {
	if r, ok := sc.rules[host]; ok {
		return r
	}
	var r *rule
	if svc := sc.byHost[host]; svc != nil {
		r = sc.Index.rules.lookup(sc.namespace(), sc.proxy.Labels, host, svc.Namespace)
	}
	sc.rules[host] = r
	return r
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
