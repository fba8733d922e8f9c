package view

import (
	"reflect"
	"slices"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Listener is the input of one Listener resource.
type Listener struct {
	base
	Name string
	// Addresses has at least one: IP addresses, or one "unix:///path".
	Addresses []string
	Port      uint32
	Inbound   bool
	// BindToPort is false for a listener that only gets connections from another listener.
	BindToPort bool
	// UseOriginalDst passes connections to the listener of their original destination.
	UseOriginalDst bool
	// Transparent is for TPROXY.
	Transparent bool
	// OriginalDst and OriginalSrc restore the addresses that capture has replaced.
	OriginalDst, OriginalSrc bool
	// InspectTLS and InspectHTTP inspect the first bytes of a connection.
	InspectTLS, InspectHTTP bool
	// Gateway means that it is for a gateway: what says nothing within 15 seconds is closed.
	Gateway bool
	// QUIC listens for HTTP/3 over UDP.
	QUIC bool
	// ProxyProtocol expects the PROXY protocol before all else.
	ProxyProtocol bool
	// InspectTimeout is the timeout of the inspection; 0 means none.
	InspectTimeout time.Duration
	Chains         []*FilterChain
	// Default is for connections that no chain matches; or nil.
	Default *FilterChain
	// Telemetry is what the proxy reports of the listener's traffic; nil means nothing.
	Telemetry *Telemetry
}

// sameAs reports whether a listener without a hash has the content of another one.
func (l *Listener) sameAs(o *Listener) bool {
	x := *l
	x.base = o.base
	return reflect.DeepEqual(&x, o)
}

// FilterChain is a filter chain. It has either HTTP or TCP.
type FilterChain struct {
	Name  string
	Match FilterChainMatch
	// TLS is nil for plaintext.
	TLS *ServerTLS
	// Gateway is TLS that a server of a Gateway, or a port of a Sidecar, ends, with certificates of its
	// own; or nil.
	Gateway *GatewayTLS
	HTTP    *HTTPConnectionManager
	TCP     *TCPProxy
	// Deny refuses every connection of a chain with TCP, because a security policy applies
	// that cannot be enforced. A chain with HTTP has slots for that.
	Deny bool
	// Authorization is what AuthorizationPolicies say of the connections of a chain with TCP;
	// nil means nothing. A chain with HTTP has slots for that.
	Authorization *Authorization
	// Rules is a short hash of the rules in the slots of a chain with HTTP; empty if there are
	// none. Envoy drains the connections of a chain that changes: so open streams, which are
	// judged at their start only, end when rules change.
	Rules string
	// Unreported is for what connects to a port of capture itself: as in Istio, the proxy's
	// Telemetry is not about it.
	Unreported bool
}

// blackholeChain is for connections to a port of capture itself: they would lead back to it.
func blackholeChain(name string, port uint32) *FilterChain {
	to := ClusterRef{Kind: BlackHoleCluster}
	return &FilterChain{
		Name: name, Match: FilterChainMatch{DestinationPort: port}, Unreported: true,
		TCP: &TCPProxy{StatPrefix: statPrefix(to), Destinations: []WeightedCluster{{Cluster: to}}},
	}
}

// FilterChainMatch says which connections a chain is for; empty means all.
type FilterChainMatch struct {
	DestinationPort uint32
	CIDRs           []string
	ServerNames     []string
	Transport       string
	ALPN            []string
}

// PlaintextHTTP reports whether the chain is for what the HTTP inspector recognizes.
func (m *FilterChainMatch) PlaintextHTTP() bool {
	return m.Transport == transportRawBuffer && slices.Equal(m.ALPN, plaintextALPN())
}

// matchesAll reports whether the chain is for every connection.
func (m *FilterChainMatch) matchesAll() bool {
	return m.DestinationPort == 0 && len(m.CIDRs) == 0 && m.Transport == "" && len(m.ALPN) == 0 && len(serverNames(m)) == 0
}

// ServerTLS is mTLS with identities of the mesh, at the server's side.
type ServerTLS struct {
	// HTTP offers the ALPN protocols of HTTP.
	HTTP bool
	// TrustDomains are those whose identities may connect.
	TrustDomains []string
	// Names are those that may connect of these; empty means all.
	Names []string
	// TLS13 and CipherSuites are MeshConfig's meshMTLS: whether TLS 1.3 is the least version,
	// not 1.2, and the cipher suites of 1.2; empty means Istio's.
	TLS13        bool
	CipherSuites []string
	// MaxAge is how long a connection may live, so that it does not outlive the client's
	// certificate by much; 0 means no limit. HTTP connections are drained, TCP connections
	// are closed.
	MaxAge time.Duration
}

// HTTPConnectionManager is an HTTP connection manager.
type HTTPConnectionManager struct {
	StatPrefix string
	// RouteName is the RouteConfiguration that is requested by RDS; empty means Inbound.
	RouteName string
	Inbound   *InboundRoute
	// Slots are filters whose configuration is an [Extension] each. They stand before all
	// others.
	Slots []Slot
	// NormalizePath, MergeSlashes and UnescapeSlashes are MeshConfig's
	// pathNormalization.
	NormalizePath, MergeSlashes, UnescapeSlashes bool
	// AllowAbsoluteURL is for explicit HTTP proxies.
	AllowAbsoluteURL bool
	// GRPCWeb translates gRPC-Web.
	GRPCWeb bool
	// Headers are the settings of the headers that the proxy writes; nil for Istio's
	// defaults.
	Headers *meshconfig.ProxyConfig_ProxyHeaders
	// Gateway is nil for a sidecar.
	Gateway *GatewayHTTP
}

// InboundRoute sends every request to the application.
type InboundRoute struct {
	Cluster   ClusterRef
	Operation string
	// Retry says that a request may be sent again, by Retries: MeshConfig's
	// defaultInboundHttpRetryPolicy, or nil for Istio's default.
	Retry   bool
	Retries *networking.HTTPRetry
}

// TCPProxy is a TCP proxy filter.
type TCPProxy struct {
	StatPrefix string
	// Config is the VirtualService; zero if there is none. CatchAll means that it is for connections to
	// unknown hosts.
	Config   mesh.Key
	CatchAll bool
	// Destinations has one cluster, or several with weights.
	Destinations []WeightedCluster
	IdleTimeout  time.Duration // 0 means Envoy's default
	MaxDuration  time.Duration // 0 means none
	HashSourceIP bool
	// Tunnel is the host and port to which an HTTP proxy, which the destination is, connects; empty
	// without one. TunnelPost asks it by POST, not by CONNECT.
	Tunnel     string
	TunnelPost bool
	// LookUp is the port of the host that the server name (SNI) says, which is looked up for the cluster;
	// 0 means that nothing is. LookUpFamily are the addresses that count.
	LookUp       uint32
	LookUpFamily LookupFamily
}

// WeightedCluster is a share of traffic.
type WeightedCluster struct {
	Cluster ClusterRef
	Weight  uint32
}
