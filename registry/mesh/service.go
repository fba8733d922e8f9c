package mesh

import (
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// Hostname is a DNS name in lower case, or a wildcard such as "*.example.com"
// or "*".
type Hostname string

// IsWildcard reports whether h stands for more than one name.
func (h Hostname) IsWildcard() bool { return strings.HasPrefix(string(h), "*") }

// Covers reports whether every name that o stands for is also one of h's. The
// rules are those of Istio's host.Name.SubsetOf, to the letter: what follows
// the star is compared as text, so that "*foo.com" covers "foo.com" and
// "barfoo.com", while "*.foo.com" does not cover "foo.com".
func (h Hostname) Covers(o Hostname) bool {
	switch {
	case !h.IsWildcard():
		return h == o
	case o.IsWildcard():
		return len(o) >= len(h) && strings.HasSuffix(string(o[1:]), string(h[1:]))
	default:
		return strings.HasSuffix(string(o), string(h[1:]))
	}
}

// Overlaps reports whether some name is one of h's and one of o's (Istio's
// host.Name.Matches).
func (h Hostname) Overlaps(o Hostname) bool { return h.Covers(o) || o.Covers(h) }

// Protocol is the application protocol of a port.
type Protocol string

// The protocols Istio tells apart (pkg/config/protocol/instance.go). The empty
// Protocol means that none was declared: the port is treated as opaque TCP.
const (
	HTTP       Protocol = "HTTP"
	HTTPProxy  Protocol = "HTTP_PROXY"
	HTTP2      Protocol = "HTTP2"
	GRPC       Protocol = "GRPC"
	GRPCWeb    Protocol = "GRPC-WEB"
	HTTPS      Protocol = "HTTPS"
	TLS        Protocol = "TLS"
	TCP        Protocol = "TCP"
	UDP        Protocol = "UDP"
	Mongo      Protocol = "MONGO"
	Redis      Protocol = "REDIS"
	MySQL      Protocol = "MYSQL"
	Undeclared Protocol = ""
)

// IsHTTP reports whether requests of this protocol are visible in plain.
func (p Protocol) IsHTTP() bool {
	switch p {
	case HTTP, HTTP2, GRPC, GRPCWeb, HTTPProxy:
		return true
	default:
		return false
	}
}

// IsHTTP2 reports whether the protocol is always carried by HTTP/2.
func (p Protocol) IsHTTP2() bool { return p == HTTP2 || p == GRPC || p == GRPCWeb }

// IsTLS reports whether the application itself speaks TLS.
func (p Protocol) IsTLS() bool { return p == HTTPS || p == TLS }

// Port is a port of a service, as its clients see it.
type Port struct {
	Name     string
	Number   uint32
	Protocol Protocol
	// TargetPort is the port of a workload where neither the workload nor the
	// inline endpoint says otherwise; 0 means Number.
	TargetPort uint32
}

// Resolution says how the endpoints of a service are found (ServiceEntry's
// field of that name).
type Resolution uint8

// The resolutions of a ServiceEntry.
const (
	ResolutionNone Resolution = iota
	ResolutionStatic
	ResolutionDNS
	ResolutionDNSRoundRobin
	ResolutionDynamicDNS
)

// String is the word of a ServiceEntry.
func (r Resolution) String() string {
	switch r {
	case ResolutionNone:
		return "NONE"
	case ResolutionStatic:
		return "STATIC"
	case ResolutionDNS:
		return "DNS"
	case ResolutionDNSRoundRobin:
		return "DNS_ROUND_ROBIN"
	case ResolutionDynamicDNS:
		return "DYNAMIC_DNS"
	default:
		return "unknown"
	}
}

// Exports says which namespaces see an object. "*" means all, "~" none except by explicit
// import, and any other string is a namespace; "." has been replaced by the object's own
// namespace. A namespace after "!" is excluded; no manifest can write that. Sorted; empty
// means all.
type Exports []string

// To reports whether the namespace is one of those. As in Istio, "*" counts
// before "~", and "~" before any namespace.
func (e Exports) To(namespace string) bool {
	switch {
	case slices.ContainsFunc(e, func(x string) bool { return len(x) > 1 && x[0] == '!' && x[1:] == namespace }):
		return false
	case len(e) == 0 || slices.Contains(e, "*"):
		return true
	case slices.Contains(e, "~"):
		return false
	default:
		return slices.Contains(e, namespace)
	}
}

// AllocatedAddresses are an IPv4 address, an IPv6 address, or both, in this order. Only proxies
// that capture use them.
type AllocatedAddresses []string

// Service is a host name with its ports: what a client names.
type Service struct {
	// Meta is that of the object the service was read from; several services
	// share it where one ServiceEntry has several hosts.
	Meta
	Hostname Hostname
	// Addresses are VIPs or CIDR blocks, normalised and sorted; may be empty.
	Addresses []string
	// Allocated are the addresses that the control plane chose for a service without Addresses.
	// A fragment has none.
	Allocated AllocatedAddresses
	// Ports are in the order of the manifest, for that order decides in Istio.
	Ports      []Port
	Resolution Resolution
	// External is MESH_EXTERNAL: no mesh identity is expected at the far side.
	External bool
	ExportTo Exports
	// SubjectAltNames are the identities that the manifest accepts besides
	// those of the workloads.
	SubjectAltNames []string
	// Selector chooses workloads by label in the service's namespace; nil means
	// that Inline has the endpoints.
	Selector map[string]string
	// Inline are the endpoints written in the service itself. Their names are
	// empty.
	Inline []*Workload
	// Catalog says that nobody wrote the service down: a source derived it from
	// the registrations of a catalog. It gives way to a service of the same host
	// name that somebody did write.
	Catalog bool
	// Yields are ports, sorted, at which the services of others come first for clients
	// in other namespaces, as the source is bound to namespaces.
	Yields []uint32
	// LostNames are short forms that the service has not, as its source is bound to namespaces.
	LostNames LostNames
}

// Port finds a port by its number.
func (s *Service) Port(number uint32) (Port, bool) {
	for _, p := range s.Ports {
		if p.Number == number {
			return p, true
		}
	}
	return Port{}, false
}

// Locality is where a workload runs.
type Locality struct{ Region, Zone, SubZone string }

// ParseLocality reads Istio's "region/zone/subzone"; missing parts are empty.
func ParseLocality(s string) Locality {
	var l Locality
	l.Region, s, _ = strings.Cut(s, "/")
	l.Zone, l.SubZone, _ = strings.Cut(s, "/")
	return l
}

// Health is whether a workload can take traffic.
type Health uint8

// What is known of a workload's health. Unknown counts as healthy, as nobody
// has probed it. Silent is no verdict: the workload's agent is known, and its stream is
// gone. Such a workload is used only where no better one is left.
const (
	HealthUnknown Health = iota
	Healthy
	Unhealthy
	Silent
)

// String is the word for people.
func (h Health) String() string {
	switch h {
	case Healthy:
		return "healthy"
	case Unhealthy:
		return "unhealthy"
	case Silent:
		return "silent"
	default:
		return "unknown"
	}
}

// Workload is a machine or process that serves: a WorkloadEntry, an instance of
// a catalog, or an endpoint written inside a ServiceEntry.
type Workload struct {
	Meta
	// Address is an IP address, a DNS name, or "unix:///path".
	Address string
	// Ports maps port names of services to port numbers here; or nil.
	Ports map[string]uint32
	// ServiceAccount, with the namespace, is the workload's identity; empty
	// means that it has none.
	ServiceAccount string
	Network        string
	Locality       Locality
	// Weight is relative to the other endpoints of the locality; 0 means 1.
	Weight uint32
	Health Health
	// HealthReason is for people, such as "http probe: 503"; empty unless
	// Unhealthy or Silent. It is no part of the Hash.
	HealthReason string
	// Withdrawn says that a person took it out of service: it is Unhealthy, and
	// stays so whatever is reported of its health.
	Withdrawn bool
	// ProxyConfig is what Istio's annotation proxy.istio.io/config says; or nil. Read-only.
	ProxyConfig *meshconfig.ProxyConfig
}

// PortFor is the port at which the workload serves p.
func (w *Workload) PortFor(p Port) uint32 {
	if n, ok := w.Ports[p.Name]; ok && n != 0 {
		return n
	}
	if p.TargetPort != 0 {
		return p.TargetPort
	}
	return p.Number
}

// ServiceAccount names an identity within a trust domain:
// spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/NAME.
type ServiceAccount struct{ Namespace, Name string }

// String is "namespace/name".
func (a ServiceAccount) String() string { return a.Namespace + "/" + a.Name }

// ReservedPath begins the paths of identities that are not for traffic: those of
// hosts, spiffe://TRUST-DOMAIN/fairlead/host/NAME, which renew and open streams.
const ReservedPath = "fairlead/"

// IsReservedIdentity reports whether a SPIFFE ID, of any trust domain, is one of
// those.
func IsReservedIdentity(id string) bool {
	rest, spiffe := strings.CutPrefix(id, "spiffe://")
	_, path, _ := strings.Cut(rest, "/")
	return spiffe && strings.HasPrefix(path, ReservedPath)
}

// WorkloadGroup is the template of workloads that register themselves.
type WorkloadGroup struct {
	Meta
	Spec *networking.WorkloadGroup
	// ProxyConfig is what Istio's annotation proxy.istio.io/config, and the probe, say of the
	// proxies of the group; or nil. Read-only.
	ProxyConfig *meshconfig.ProxyConfig
}
