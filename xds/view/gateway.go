package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// gatewayServer is one server of a Gateway that a proxy has.
type gatewayServer struct {
	*networking.Server
	gateway  *mesh.Gateway
	name     string // of the Gateway: namespace/name
	protocol mesh.Protocol
	// port is where it listens: that of the server, unless a service that the proxy belongs to
	// leads its port to another one.
	port uint32
	// routes is the name of its route configuration; empty for TCP.
	routes string
}

// gatewayPort is what listens: a port in the words of its servers. Ports that differ in their
// protocol only share a listener.
type gatewayPort struct {
	number         uint32
	protocol, bind string
}

// mergedGateways is the servers of all Gateways of one proxy (Istio's MergedGateway).
type mergedGateways struct {
	ports    []gatewayPort
	servers  map[gatewayPort][]*gatewayServer
	routes   map[gatewayPort]string
	byRoute  map[string][]*gatewayServer
	warnings []Warning

	plain    map[uint32]gatewayPort
	used     map[uint32]bool
	tlsHosts map[uint32]map[string]gatewayHost
}

// gatewayHost is who has a host of servers with TLS.
type gatewayHost struct {
	bind   string
	server *gatewayServer
}

// portTarget says that a service's port is another one at the workloads that serve it.
type portTarget struct{ Port, Target uint32 }

// gatewaysOf are the Gateways for a proxy with some labels, in order of precedence.
func (x *Index) gatewaysOf(ns string, labels map[string]string) []*mesh.Gateway {
	var out []*mesh.Gateway
	for _, g := range x.s.Gateways {
		if mesh.Selects(g.Spec.GetSelector(), labels) && (g.Namespace == ns || !x.s.Bound(g.Namespace)) {
			out = append(out, g)
		}
	}
	return out
}

// mergeGateways decides which servers share a port, and which are left out because of an earlier one
// (Istio's mergeGateways, pilot/pkg/model/gateway.go).
func mergeGateways(list []*mesh.Gateway, targets []portTarget) *mergedGateways {
	m := &mergedGateways{
		servers: map[gatewayPort][]*gatewayServer{}, routes: map[gatewayPort]string{}, byRoute: map[string][]*gatewayServer{},
		plain: map[uint32]gatewayPort{}, used: map[uint32]bool{}, tlsHosts: map[uint32]map[string]gatewayHost{},
	}
	for _, g := range list {
		for _, spec := range g.Spec.GetServers() {
			if spec.GetPort() != nil {
				m.add(newGatewayServer(g, spec, targets))
			}
		}
	}
	return m
}

func newGatewayServer(g *mesh.Gateway, spec *networking.Server, targets []portTarget) *gatewayServer {
	s := &gatewayServer{
		Server: spec, gateway: g, name: g.Namespace + "/" + g.Name,
		protocol: parseProtocol(spec.GetPort().GetProtocol()), port: spec.GetPort().GetNumber(),
	}
	if i := slices.IndexFunc(targets, func(t portTarget) bool { return t.Port == s.port }); i >= 0 {
		s.port = targets[i].Target
	}
	bind := ""
	if spec.GetBind() != "" {
		bind = "." + spec.GetBind()
	}
	switch {
	case s.protocol.IsHTTP():
		s.routes = "http." + strconv.FormatUint(uint64(s.port), 10) + bind
	case s.endsHTTPS():
		s.routes = "https." + strconv.FormatUint(uint64(spec.GetPort().GetNumber()), 10) + "." + spec.GetPort().GetName() + "." + g.Name + "." + g.Namespace + bind
	}
	return s
}

// passes reports whether TLS passes through the server.
func (s *gatewayServer) passes() bool {
	switch s.GetTls().GetMode() {
	case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		return s.GetTls() != nil
	default:
		return false
	}
}

// endsHTTPS reports whether the server ends TLS, and has HTTP in it.
func (s *gatewayServer) endsHTTPS() bool { return s.protocol == mesh.HTTPS && !s.passes() }

// isTLS reports whether connections begin with TLS.
func (s *gatewayServer) isTLS() bool { return s.GetTls() != nil && !s.protocol.IsHTTP() }

// isHTTP reports whether the server has routes for requests.
func (s *gatewayServer) isHTTP() bool { return s.protocol.IsHTTP() || s.endsHTTPS() }

// sniHosts are the server names of a server with TLS, sorted.
func (s *gatewayServer) sniHosts() []string {
	hosts := map[string]bool{}
	for _, h := range s.GetHosts() {
		if _, host, qualified := strings.Cut(h, "/"); qualified {
			h = host
		}
		hosts[h] = true
	}
	return slices.Sorted(maps.Keys(hosts))
}

// hostsFor are the hosts of the server for VirtualServices of a namespace.
func (s *gatewayServer) hostsFor(namespace string) []mesh.Hostname {
	out := make([]mesh.Hostname, 0, len(s.GetHosts()))
	for _, h := range s.GetHosts() {
		if ns, host, qualified := strings.Cut(h, "/"); qualified {
			if ns != namespace {
				continue
			}
			h = host
		}
		out = append(out, lower(h))
	}
	return out
}

func (s *gatewayServer) at() gatewayPort {
	return gatewayPort{s.port, s.GetPort().GetProtocol(), s.GetBind()}
}

func (m *mergedGateways) add(s *gatewayServer) {
	at := s.at()
	if s.GetTls() != nil && !m.takeHosts(s) {
		return
	}
	if !m.used[s.port] {
		m.used[s.port] = true
		m.open(s, at)
		return
	}
	current, plain := m.plain[s.port]
	switch {
	case plain && current.bind == at.bind:
		protocol := parseProtocol(current.protocol)
		if s.routes == "" || !s.protocol.IsHTTP() || !protocol.IsHTTP() && protocol != s.protocol {
			m.reject(s, m.servers[current][0], fmt.Sprintf("a server of %s has the port first, and a server of %s cannot share it", current.protocol, at.protocol))
			return
		}
		m.servers[current] = append(m.servers[current], s)
		m.byRoute[s.routes] = append(m.byRoute[s.routes], s)
	case plain && m.servers[at] == nil, !plain && !s.isTLS():
		m.open(s, at)
	case plain:
		m.routes[at] = s.routes
		m.join(s, at)
		m.byRoute[s.routes] = append(m.byRoute[s.routes], s)
	case s.isHTTP() && len(m.byRoute[s.routes]) > 0:
		m.reject(s, m.byRoute[s.routes][0], "another server of the same Gateway has the same name of its port")
	default:
		if s.isHTTP() {
			m.byRoute[s.routes] = []*gatewayServer{s}
		}
		m.join(s, at)
	}
}

// open makes the server the first one of its port.
func (m *mergedGateways) open(s *gatewayServer, at gatewayPort) {
	if !s.isTLS() {
		m.plain[s.port] = at
	}
	if s.isHTTP() {
		m.byRoute[s.routes] = []*gatewayServer{s}
	}
	if m.servers[at] == nil {
		m.ports = append(m.ports, at)
	}
	m.servers[at], m.routes[at] = []*gatewayServer{s}, s.routes
}

func (m *mergedGateways) join(s *gatewayServer, at gatewayPort) {
	if m.servers[at] == nil {
		m.ports = append(m.ports, at)
	}
	m.servers[at] = append(m.servers[at], s)
}

// takeHosts reports whether no earlier server with TLS has one of the server's hosts at its port: Envoy
// rejects two filter chains for one name.
func (m *mergedGateways) takeHosts(s *gatewayServer) bool {
	taken := m.tlsHosts[s.port]
	if taken == nil {
		taken = map[string]gatewayHost{}
		m.tlsHosts[s.port] = taken
	}
	for _, h := range s.GetHosts() {
		if have, ok := taken[h]; ok && have.bind == s.GetBind() {
			m.reject(s, have.server, fmt.Sprintf("a server there has the host %q first", h))
			return false
		}
	}
	for _, h := range s.GetHosts() {
		taken[h] = gatewayHost{s.GetBind(), s}
	}
	return true
}

func (m *mergedGateways) reject(s, kept *gatewayServer, why string) {
	m.warnings = append(m.warnings, Warning{
		Key: s.gateway.Key, Origin: s.gateway.Origin,
		Message: fmt.Sprintf("the server %q on port %d is left out: %s (%s)", cmp.Or(s.GetName(), s.GetPort().GetName()), s.port, why, kept.gateway.Key),
	})
}

// intersection are the hosts that both lists cover, in the order of the first one (Istio's
// Names.Intersection).
func intersection(a, b []mesh.Hostname) []mesh.Hostname {
	var out []mesh.Hostname
	add := func(h mesh.Hostname) {
		if !slices.Contains(out, h) {
			out = append(out, h)
		}
	}
	for _, x := range a {
		for _, y := range b {
			switch {
			case y.Covers(x):
				add(x)
			case x.Covers(y):
				add(y)
			}
		}
	}
	return out
}
