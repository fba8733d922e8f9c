package view

import (
	"net/netip"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Proxy is a client of xDS: its identity and where it runs. It is a value, made from an
// authenticated node, or from flags for offline rendering.
type Proxy struct {
	// ID is the node id, sidecar~IP~NAME.NAMESPACE~NAMESPACE.svc.DOMAIN.
	ID string
	// Type is Sidecar or Router.
	Type ProxyType
	// Namespace and ServiceAccount are the identity that was proven.
	ServiceAccount mesh.ServiceAccount
	// Addresses are the proxy's own addresses, the first is the one that other
	// workloads use.
	Addresses []string
	// Labels are those of the workload in the mesh.
	Labels   map[string]string
	Locality mesh.Locality
	Network  string
	// Interception says how traffic comes to the proxy.
	Interception Interception
	// HTTPProxyPort is where the proxy listens for applications that use an HTTP proxy; 0 means
	// MeshConfig's proxyHttpPort.
	HTTPProxyPort uint32
	// Loopback gives each service with a virtual address one of 127.0.0.0/8, without capture.
	Loopback bool
	// IPv6 says that the host has IPv6, whatever Addresses are: an agent has one address in the mesh.
	IPv6 bool
	// FirstPort is the lowest port at which the proxy may listen; 0 means any.
	FirstPort uint32
	// EnvoyVersion is what the proxy runs; zero means unknown.
	EnvoyVersion Version
	// FileSecrets means that the proxy gets certificates in files as secrets from its agent,
	// with Istio's names.
	FileSecrets bool
	// FileLists means that these may have lists of revoked certificates, and any path.
	FileLists bool
	// AccessLogService means that the proxy has an agent that takes its access log and completes
	// its metrics.
	AccessLogService bool
	// Names means that the proxy has an agent that answers DNS queries.
	Names bool
	// Tracing is what the workload's own ProxyConfig says of tracing; or nil.
	Tracing *meshconfig.Tracing
	// Headers is what its own ProxyConfig says of the headers that the proxy writes; or nil.
	Headers *meshconfig.ProxyConfig_ProxyHeaders
	// Topology is what its own ProxyConfig says of the proxies before it, if it is a gateway; or nil.
	Topology *meshconfig.Topology
	// AcceptUnenforced allows requests to which a security policy applies that this build
	// cannot enforce. Otherwise they are all denied.
	AcceptUnenforced bool
}

// ProxyType is the role of a proxy.
type ProxyType string

// The types of proxy, as the node id spells them.
const (
	Sidecar ProxyType = "sidecar"
	Router  ProxyType = "router"
)

// Interception is INTERCEPTION_MODE in the node's metadata: how traffic reaches the proxy.
type Interception string

// The modes of interception. In InterceptNone all listeners bind, and there is
// neither virtualOutbound nor virtualInbound.
const (
	InterceptRedirect Interception = "REDIRECT"
	InterceptTPROXY   Interception = "TPROXY"
	InterceptNone     Interception = "NONE"
)

// Version is a release of Envoy.
type Version struct{ Major, Minor, Patch uint32 }

// atLeast reports whether it is 1.MINOR or a later release. An unknown one is not.
func (v Version) atLeast(minor uint32) bool {
	return v.Major > 1 || v.Major == 1 && v.Minor >= minor
}

// address is the one that other workloads use; or empty.
func (p *Proxy) address() string {
	if len(p.Addresses) == 0 {
		return ""
	}
	return p.Addresses[0]
}

// families reports whether the proxy has addresses of IPv4 and of IPv6.
func (p *Proxy) families() (v4, v6 bool) {
	v6 = p.IPv6
	for _, text := range p.Addresses {
		if a, err := netip.ParseAddr(text); err == nil {
			v4, v6 = v4 || a.Unmap().Is4(), v6 || !a.Unmap().Is4()
		}
	}
	return v4, v6
}
