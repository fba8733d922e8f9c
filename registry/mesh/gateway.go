package mesh

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// GatewayServer is one server of a Gateway that a proxy has.
type GatewayServer struct {
	*networking.Server
	Gateway  *Gateway
	Protocol Protocol
	// ListensAt is the server's port, unless a service that the proxy belongs to leads that to
	// another one.
	ListensAt uint32
	// Routes is the name of its route configuration; empty for TCP.
	Routes string
}

// GatewayPort is what listens: a port in the words of its servers. Ports that differ in their
// protocol only share a listener.
type GatewayPort struct {
	Number         uint32
	Protocol, Bind string
}

// MergedGateways is the servers of all Gateways of one proxy (Istio's MergedGateway).
type MergedGateways struct {
	// Ports are in order of precedence, each with its servers and the name of its routes, if
	// it has plain HTTP.
	Ports   []GatewayPort
	Servers map[GatewayPort][]*GatewayServer
	Routes  map[GatewayPort]string
	// ByRoute has the servers of each route configuration.
	ByRoute map[string][]*GatewayServer
	// Rejected are the servers that are left out.
	Rejected []RejectedServer

	plain    map[uint32]GatewayPort
	used     map[uint32]bool
	tlsHosts map[uint32]map[string]gatewayHost
}

// RejectedServer is a server that is left out because of another one.
type RejectedServer struct {
	Server, Kept *GatewayServer
	Reason       string
}

// gatewayHost is who has a host of servers with TLS.
type gatewayHost struct {
	bind   string
	server *GatewayServer
}

// PortTarget says that a service's port is another one at the workloads that serve it.
type PortTarget struct{ Port, Target uint32 }

// MergeGateways decides which servers share a port, and which are left out because of an earlier one
// (Istio's mergeGateways, pilot/pkg/model/gateway.go). The result does not depend on the order of the list.
func MergeGateways(list []*Gateway, targets []PortTarget) *MergedGateways {
	m := &MergedGateways{
		Servers: map[GatewayPort][]*GatewayServer{}, Routes: map[GatewayPort]string{}, ByRoute: map[string][]*GatewayServer{},
		plain: map[uint32]GatewayPort{}, used: map[uint32]bool{}, tlsHosts: map[uint32]map[string]gatewayHost{},
	}
	var servers []*GatewayServer
	for _, g := range list {
		for _, spec := range g.Spec.GetServers() {
			if spec.GetPort() != nil {
				servers = append(servers, NewGatewayServer(g, spec, targets))
			}
		}
	}
	slices.SortStableFunc(servers, compareServers)
	for _, s := range servers {
		m.add(s)
	}
	return m
}

// NewGatewayServer makes a server of a Gateway, for a proxy whose services lead some ports to others.
func NewGatewayServer(g *Gateway, spec *networking.Server, targets []PortTarget) *GatewayServer {
	s := &GatewayServer{
		Server: spec, Gateway: g, Protocol: ParseProtocol(spec.GetPort().GetProtocol()), ListensAt: spec.GetPort().GetNumber(),
	}
	if i := slices.IndexFunc(targets, func(t PortTarget) bool { return t.Port == s.ListensAt }); i >= 0 {
		s.ListensAt = targets[i].Target
	}
	bind := ""
	if spec.GetBind() != "" {
		bind = "." + spec.GetBind()
	}
	switch {
	case s.Protocol.IsHTTP():
		s.Routes = "http." + strconv.FormatUint(uint64(s.ListensAt), 10) + bind
	case s.EndsHTTPS():
		s.Routes = "https." + strconv.FormatUint(uint64(spec.GetPort().GetNumber()), 10) + "." + spec.GetPort().GetName() + "." + g.Name + "." + g.Namespace + bind
	}
	return s
}

// GatewayName is how VirtualServices name the Gateway: namespace/name.
func (s *GatewayServer) GatewayName() string { return s.Gateway.Namespace + "/" + s.Gateway.Name }

// Passes reports whether TLS passes through the server.
func (s *GatewayServer) Passes() bool {
	switch s.GetTls().GetMode() {
	case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		return s.GetTls() != nil
	default:
		return false
	}
}

// EndsHTTPS reports whether the server ends TLS, and has HTTP in it.
func (s *GatewayServer) EndsHTTPS() bool { return s.Protocol == HTTPS && !s.Passes() }

// isTLS reports whether connections begin with TLS.
func (s *GatewayServer) isTLS() bool { return s.GetTls() != nil && !s.Protocol.IsHTTP() }

// isHTTP reports whether the server has routes for requests.
func (s *GatewayServer) isHTTP() bool { return s.Protocol.IsHTTP() || s.EndsHTTPS() }

// SNIHosts are the server names of a server with TLS, sorted.
func (s *GatewayServer) SNIHosts() []string {
	hosts := map[string]bool{}
	for _, h := range s.GetHosts() {
		if _, host, qualified := strings.Cut(h, "/"); qualified {
			h = host
		}
		hosts[h] = true
	}
	return slices.Sorted(maps.Keys(hosts))
}

// HostsFor are the hosts of the server for VirtualServices of a namespace.
func (s *GatewayServer) HostsFor(namespace string) []Hostname {
	out := make([]Hostname, 0, len(s.GetHosts()))
	for _, h := range s.GetHosts() {
		if ns, host, qualified := strings.Cut(h, "/"); qualified {
			if ns != namespace {
				continue
			}
			h = host
		}
		out = append(out, Hostname(strings.ToLower(h)))
	}
	return out
}

func (s *GatewayServer) at() GatewayPort {
	return GatewayPort{s.ListensAt, s.GetPort().GetProtocol(), s.GetBind()}
}

func (m *MergedGateways) add(s *GatewayServer) {
	at := s.at()
	if s.GetTls() != nil && !m.takeHosts(s) {
		return
	}
	if !m.used[s.ListensAt] {
		m.used[s.ListensAt] = true
		m.open(s, at)
		return
	}
	current, plain := m.plain[s.ListensAt]
	switch {
	case plain && current.Bind == at.Bind:
		if !s.Protocol.IsHTTP() || !ParseProtocol(current.Protocol).IsHTTP() {
			m.reject(s, m.Servers[current][0], fmt.Sprintf("a server of %s has the port first, and a server of %s cannot share it", current.Protocol, at.Protocol))
			return
		}
		m.Servers[current] = append(m.Servers[current], s)
		m.ByRoute[s.Routes] = append(m.ByRoute[s.Routes], s)
	case plain && m.Servers[at] == nil, !plain && !s.isTLS():
		m.open(s, at)
	case plain:
		m.Routes[at] = s.Routes
		m.join(s, at)
		m.ByRoute[s.Routes] = append(m.ByRoute[s.Routes], s)
	case s.isHTTP() && len(m.ByRoute[s.Routes]) > 0:
		m.reject(s, m.ByRoute[s.Routes][0], "another server of the same Gateway has the same name of its port")
	default:
		if s.isHTTP() {
			m.ByRoute[s.Routes] = []*GatewayServer{s}
		}
		m.join(s, at)
	}
}

// open makes the server the first one of its port.
func (m *MergedGateways) open(s *GatewayServer, at GatewayPort) {
	if !s.isTLS() {
		m.plain[s.ListensAt] = at
	}
	if s.isHTTP() {
		m.ByRoute[s.Routes] = []*GatewayServer{s}
	}
	if m.Servers[at] == nil {
		m.Ports = append(m.Ports, at)
	}
	m.Servers[at], m.Routes[at] = []*GatewayServer{s}, s.Routes
}

func (m *MergedGateways) join(s *GatewayServer, at GatewayPort) {
	if m.Servers[at] == nil {
		m.Ports = append(m.Ports, at)
	}
	m.Servers[at] = append(m.Servers[at], s)
}

// takeHosts reports whether no earlier server with TLS has one of the server's hosts at its port: Envoy
// rejects two filter chains for one name.
func (m *MergedGateways) takeHosts(s *GatewayServer) bool {
	taken := m.tlsHosts[s.ListensAt]
	if taken == nil {
		taken = map[string]gatewayHost{}
		m.tlsHosts[s.ListensAt] = taken
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

func (m *MergedGateways) reject(s, kept *GatewayServer, why string) {
	m.Rejected = append(m.Rejected, RejectedServer{s, kept, why})
}

// CommonHosts are the hosts that both lists cover, in the order of the first one (Istio's
// Names.Intersection).
func CommonHosts(a, b []Hostname) []Hostname {
	var out []Hostname
	add := func(h Hostname) {
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

// ParseProtocol reads a protocol as Sidecars and Gateways write it. An unknown one is undeclared.
func ParseProtocol(s string) Protocol {
	p := Protocol(strings.ToUpper(s))
	switch p {
	case HTTP, HTTPProxy, HTTP2, GRPC, GRPCWeb, HTTPS, TLS, TCP,
		UDP, Mongo, Redis, MySQL, Undeclared:
		return p
	default:
		return Undeclared
	}
}
