package meshgen

import (
	"fmt"
	"net/netip"
	"strconv"
)

// Spec says how large a mesh is and what is in it.
type Spec struct {
	// Services, and how many endpoints each has. A service that proxies of the
	// fleet belong to has as many more as they need.
	Services, Endpoints int
	// Proxies is the size of the fleet. Each is an endpoint of one of Clients
	// services, with labels, name and address of its own.
	Proxies int
	// Namespaces and Clients; 0 means 10 and 100.
	Namespaces, Clients int
	// Rules is how many of a hundred services have a VirtualService and a
	// DestinationRule of two subsets; 0 means [DefaultRules].
	Rules int
	// OwnSidecars gives every proxy a Sidecar of its own, no two with the same
	// egress.
	OwnSidecars bool
	// Capture has all proxies capture packets, and leaves the addresses of services to the
	// control plane.
	Capture bool
	// Gateways is how many Gateways there are, each with a route, and GatewayProxies how many proxies
	// have them all. These are no part of the fleet of Proxies.
	Gateways, GatewayProxies int
}

// DefaultRules makes a mesh of 1,000 services of which istiod gives a proxy 4.2 MB,
// 0.54 of them its route table (README.md has the measurement): that of the
// figures that are quoted beside ours.
const DefaultRules = 14

// tcpPercent is how many of a hundred services have a TCP port besides.
const tcpPercent = 10

func (s Spec) namespaces() int { return orElse(s.Namespaces, 10) }
func (s Spec) clients() int    { return min(orElse(s.Clients, 100), s.Services) }

func orElse(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

// Namespace is that of a service.
func (s Spec) Namespace(service int) string { return fmt.Sprintf("team-%02d", service%s.namespaces()) }

// Name is the name of a service, and of its account.
func (s Spec) Name(service int) string { return fmt.Sprintf("svc-%05d", service) }

// Host is the host name of a service.
func (s Spec) Host(service int) string {
	return s.Name(service) + "." + s.Namespace(service) + ".mesh.internal"
}

// has spreads a share of the services evenly, and differently for each kind.
func has(service, percent, salt int) bool { return (service*37+salt)%100 < percent }

func (s Spec) hasTCP(service int) bool { return has(service, tcpPercent, 9) }

// HasRoute reports whether a service has a VirtualService, and so the
// DestinationRule whose subsets that names.
func (s Spec) HasRoute(service int) bool { return has(service, orElse(s.Rules, DefaultRules), 22) }

// endpointsOf is how many endpoints a service has.
func (s Spec) endpointsOf(service int) int {
	if service >= s.clients() || s.Proxies == 0 {
		return s.Endpoints
	}
	need := s.Proxies / s.clients()
	if service < s.Proxies%s.clients() {
		need++
	}
	return max(s.Endpoints, need)
}

// isProxy reports whether an endpoint is one of the fleet.
func (s Spec) isProxy(service, endpoint int) bool {
	return service < s.clients() && endpoint*s.clients()+service < s.Proxies
}

// address of an endpoint.
func (s Spec) address(service, endpoint int) string {
	n := 256 + service*s.stride() + endpoint
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}).String()
}

func (s Spec) stride() int { return max(s.endpointsOf(0), s.Endpoints) + 1 }

// virtualIP of a service.
func virtualIP(service int) string {
	return netip.AddrFrom4([4]byte{240, 1, byte(service >> 8), byte(service)}).String()
}

// Proxy is one member of the fleet: a workload of the mesh.
type Proxy struct {
	Name, Namespace, Account, Address string
	Labels                            map[string]string
	// Gateway is a proxy before the mesh, and no sidecar.
	Gateway bool
}

// ID is the id of its node.
func (p Proxy) ID() string {
	kind := "sidecar"
	if p.Gateway {
		kind = "router"
	}
	return kind + "~" + p.Address + "~" + p.Name + "." + p.Namespace + "~" + p.Namespace + ".svc.cluster.local"
}

// Proxy gives one member of the fleet; behind its end, the gateways.
func (s Spec) Proxy(i int) Proxy {
	if i >= s.Proxies {
		return gatewayProxy(i - s.Proxies)
	}
	service, endpoint := i%s.clients(), i/s.clients()
	return Proxy{
		Name: s.workload(service, endpoint), Namespace: s.Namespace(service), Account: s.Name(service),
		Address: s.address(service, endpoint), Labels: s.labels(service, endpoint),
	}
}

func (s Spec) workload(service, endpoint int) string {
	return s.Name(service) + "-" + strconv.Itoa(endpoint)
}

func (s Spec) labels(service, endpoint int) map[string]string {
	return map[string]string{
		"app": s.Name(service), "instance": s.workload(service, endpoint), "version": version(endpoint),
	}
}

func version(endpoint int) string { return "v" + strconv.Itoa(1+endpoint%2) }

// zone spreads endpoints over three.
func zone(endpoint int) string { return "eu-1/eu-1" + string(rune('a'+endpoint%3)) }
