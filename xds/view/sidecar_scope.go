package view

import (
	"cmp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// proxyContext is a proxy in a snapshot of the mesh, with the Sidecar that applies to it.
type proxyContext struct {
	*Index
	proxy    Proxy
	sidecar  *mesh.Sidecar // or nil
	domain   string        // the DNS domain of the proxy's short names
	upstream upstreamSettings
	location location
	headers  *proxyHeaders // that the proxy writes; or nil
	access   localAccess
	// captureIPv6 means that connections over IPv6 are captured, too.
	captureIPv6 bool
	// telemetry is what the proxy reports.
	telemetry proxyTelemetry
}

// upstreamSettings are what clusters depend on of a proxy's own settings: how it resolves names,
// whether it gets certificates in files as secrets, whether HTTP/1.1 keeps the case of the names of
// headers, and whether it is a gateway.
type upstreamSettings struct {
	lookup      LookupFamily
	fileSecrets bool
	fileLists   bool
	keepCase    bool
	gateway     bool
}

func (x *Index) contextOf(p Proxy) *proxyContext {
	headers := x.headersOf(&p)
	pc := &proxyContext{
		Index: x, proxy: p, sidecar: x.sidecars.find(&p), domain: dnsDomain(&p), headers: headers,
		upstream: upstreamSettings{x.settings.lookupFamily(&p), p.FileSecrets, p.FileLists, headers.keepsCase(), p.Type == Router}, captureIPv6: p.capturesIPv6(),
		access: x.localAccessOf(&p), location: x.locationOf(&p),
	}
	pc.addTelemetry()
	return pc
}

func (pc *proxyContext) namespace() string { return pc.proxy.ServiceAccount.Namespace }

// sidecarScope is what one proxy can see, before it is turned into parts (Istio's
// SidecarScope).
type sidecarScope struct {
	*proxyContext
	egress []*egressListener
	// services are those of all egress listeners and the destinations of their routes.
	// There is one for each host name, sorted by host name. Only these have their rule set.
	services []*service
	// registryOnly means that requests to unknown hosts are refused (REGISTRY_ONLY).
	registryOnly bool
	// egressProxy receives traffic to unknown hosts; or nil.
	egressProxy *networking.Destination
	// gateways are those of a gateway proxy, in order of precedence.
	gateways []*mesh.Gateway
	// passthrough are the hosts to which mTLS of the mesh passes through it (AUTO_PASSTHROUGH).
	passthrough []mesh.Hostname
}

// service is a service as a proxy sees it, perhaps with fewer ports.
type service struct {
	*mesh.Service
	Ports []mesh.Port
	rule  *rule // or nil

	// full is the service of which this one has a single port; or nil.
	full *service
	// domains are cached for the next list of virtual hosts; or nil.
	domains *serviceDomains
}

// onPort returns the service with one of its ports only; or nil.
func (s *service) onPort(port uint32) *service {
	p, ok := s.port(port)
	switch {
	case !ok:
		return nil
	case len(s.Ports) == 1:
		return s
	default:
		return &service{Service: s.Service, Ports: []mesh.Port{p}, full: s}
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

// position is where a port stands among the ports of the whole service; ports that it does
// not have are the last.
func (s *service) position(p mesh.Port) int {
	i := slices.IndexFunc(s.Service.Ports, func(o mesh.Port) bool { return o.Number == p.Number })
	if i < 0 {
		return len(s.Service.Ports)
	}
	return i
}

// egressListener is an egress listener of a Sidecar with what it imports.
type egressListener struct {
	spec            *networking.IstioEgressListener
	filters         map[string]*hostFilter // by namespace
	services        []*service
	virtualServices []*virtualService
}

// hasPort reports whether the listener is for one port, or one Unix socket.
func (e *egressListener) hasPort() bool { return e.spec.GetPort() != nil }

// newSidecarScope computes a scope. prev is the previous scope, or nil; it must not be used
// afterwards.
func newSidecarScope(pc *proxyContext, prev *sidecarScope) *sidecarScope {
	sc := &sidecarScope{proxyContext: pc}
	var spec *networking.Sidecar
	if sc.sidecar != nil {
		spec = sc.sidecar.Spec
	}
	listeners := spec.GetEgress()
	if len(listeners) == 0 {
		listeners = []*networking.IstioEgressListener{{Hosts: []string{"*/*"}}}
	}
	services := sc.visibleServices(sc.namespace())
	var virtualServices []*virtualService
	if pc.proxy.Type == Router {
		sc.gateways = sc.gatewaysOf(sc.namespace(), sc.proxy.Labels)
		sc.passthrough = passthroughHosts(sc.gateways)
	} else {
		virtualServices = sc.visibleVirtualServices(sc.namespace())
	}
	for i, l := range listeners {
		e := sc.newEgressListener(l, services, virtualServices)
		if prev != nil && len(prev.egress) == len(listeners) {
			e.reuseDomains(prev.egress[i])
		}
		sc.egress = append(sc.egress, e)
	}
	sc.collectServices()
	sc.registryOnly = sc.config.GetOutboundTrafficPolicy().GetMode().String() == "REGISTRY_ONLY"
	if otp := spec.GetOutboundTrafficPolicy(); otp != nil {
		sc.registryOnly = otp.GetMode() == networking.OutboundTrafficPolicy_REGISTRY_ONLY
		if !sc.registryOnly {
			sc.egressProxy = otp.GetEgressProxy()
		}
	}
	return sc
}

// find returns the service of a host if the proxy has clusters for it; or nil.
func (sc *sidecarScope) find(host mesh.Hostname) *service {
	if i, ok := slices.BinarySearchFunc(sc.services, host, compareHosts); ok {
		return sc.services[i]
	}
	return nil
}

// rule is the DestinationRule for a host, as this proxy sees it; or nil. Only hosts in the
// scope have one.
func (sc *sidecarScope) rule(host mesh.Hostname) *rule {
	return sc.find(host).destinationRule()
}

// destinationRule is the rule of a service, which may be nil; or nil.
func (s *service) destinationRule() *rule {
	if s == nil {
		return nil
	}
	return s.rule
}

func (sc *sidecarScope) lookupRule(svc *service) *rule {
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

func (f *hostFilter) importsRouteHost(h mesh.Hostname) bool {
	return f != nil && slices.ContainsFunc(f.hosts, func(i mesh.Hostname) bool { return i.Overlaps(h) })
}

func (sc *sidecarScope) hostFilters(l *networking.IstioEgressListener) map[string]*hostFilter {
	out := map[string]*hostFilter{}
	for _, entry := range l.GetHosts() {
		ns, host, ok := strings.Cut(entry, "/")
		if !ok {
			continue
		}
		ns, excluded := strings.CutPrefix(ns, "~")
		switch {
		case excluded && ns == "": // "~/*" imports nothing, and takes away what other entries import
			ns = "*"
		case ns == ".":
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

// importsVirtualService reports whether the listener imports a VirtualService that the
// namespace sees.
func (e *egressListener) importsVirtualService(vs *virtualService) bool {
	own, all := e.filters[vs.Namespace], e.filters["*"]
	return slices.ContainsFunc(vs.hosts, func(host mesh.Hostname) bool {
		return !own.excludes(host) && !all.excludes(host) && (own.importsRouteHost(host) || all.importsRouteHost(host))
	})
}

// importsService reports whether the listener imports a service that the namespace sees.
func (e *egressListener) importsService(svc *mesh.Service) bool {
	own, all := e.filters[svc.Namespace], e.filters["*"]
	return !own.excludes(svc.Hostname) && !all.excludes(svc.Hostname) &&
		(own.importsService(svc.Hostname) || all.importsService(svc.Hostname))
}

// includes reports whether the scope has a service, if the namespace sees it.
func (sc *sidecarScope) includes(svc *mesh.Service) bool {
	for _, e := range sc.egress {
		if e.importsService(svc) {
			return true
		}
	}
	for _, e := range sc.egress {
		for _, vs := range e.virtualServices {
			if _, ok := slices.BinarySearchFunc(vs.destinations(sc.namespace()), svc.Hostname, compareDestination); ok {
				return true
			}
		}
	}
	return false
}

func compareDestination(r destinationPorts, h mesh.Hostname) int { return cmp.Compare(r.host, h) }

func (sc *sidecarScope) newEgressListener(l *networking.IstioEgressListener, services []*mesh.Service, routes []*virtualService) *egressListener {
	e := &egressListener{spec: l, filters: sc.hostFilters(l)}
	for _, vs := range routes {
		if e.importsVirtualService(vs) {
			e.virtualServices = append(e.virtualServices, vs)
		}
	}
	onlyPort := uint32(0)
	if n := l.GetPort().GetNumber(); n != 0 && mesh.ParseProtocol(l.GetPort().GetProtocol()) != mesh.HTTPProxy {
		onlyPort = n
	}
	chosen := map[mesh.Hostname]string{} // the namespace whose service is used for a host name
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

// reuseDomains takes over the domains of unchanged services.
func (e *egressListener) reuseDomains(prev *egressListener) {
	old := prev.services
	for _, s := range e.services {
		i := slices.IndexFunc(old, func(o *service) bool { return o.Service == s.Service })
		if i >= 0 {
			s.domains, old = old[i].domains, old[i+1:]
		}
	}
}

// virtualServiceFinder returns a function that finds the VirtualService with the most
// specific host for a service.
func (e *egressListener) virtualServiceFinder() func(mesh.Hostname) *virtualService {
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

// collectServices collects what the proxy needs clusters for: what its listeners import,
// and the destinations of their routes.
func (sc *sidecarScope) collectServices() {
	byHost := make(servicesByHost, len(sc.egress[0].services))
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

// destination is the service that a route leads to, with the ports that the route names.
func (sc *sidecarScope) destination(to destinationPorts) *service {
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

// servicesByHost is services by host name.
type servicesByHost map[mesh.Hostname]*service

// add adds a service. If there is one with that host name, and both have one namespace and
// resolution, it adds the missing ports to that one. The order of its ports does not depend
// on which of them came first.
func (c servicesByHost) add(s *service) {
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
		slices.SortStableFunc(merged.Ports, func(a, b mesh.Port) int { return cmp.Compare(merged.position(a), merged.position(b)) })
		c[s.Hostname] = merged
	}
}

// destinationsOf are the hosts that a VirtualService leads to, with the ports it names,
// sorted by host.
func destinationsOf(vs *virtualService, ns string) []destinationPorts {
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
	out := make([]destinationPorts, 0, len(byHost))
	for h, ports := range byHost {
		slices.Sort(ports)
		out = append(out, destinationPorts{h, slices.Compact(ports)})
	}
	slices.SortFunc(out, func(a, b destinationPorts) int { return cmp.Compare(a.host, b.host) })
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
