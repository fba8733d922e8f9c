package view

import (
	"reflect"
	"time"
)

// Listener is the input of one Listener resource.
type Listener struct {
	base
	Name string
	// Addresses has at least one: IP addresses, or one "unix:///path".
	Addresses []string
	Port      uint32
	Inbound   bool
	// BindToPort is false for a listener that only receives what another one
	// hands over.
	BindToPort bool
	// HandsOver means that connections go to the listener of their original
	// destination.
	HandsOver bool
	// Transparent is for TPROXY.
	Transparent bool
	// OriginalDst and OriginalSrc restore what capture has replaced.
	OriginalDst, OriginalSrc bool
	// InspectTLS and InspectHTTP look into the first bytes.
	InspectTLS, InspectHTTP bool
	// InspectTimeout is for those; 0 means none.
	InspectTimeout time.Duration
	Chains         []*Chain
	// Default takes what no chain matches; or nil.
	Default *Chain
}

// sameAs reports whether a listener that has no hash yet has the content of
// another.
func (l *Listener) sameAs(o *Listener) bool {
	x := *l
	x.base = o.base
	return reflect.DeepEqual(&x, o)
}

// Chain is a filter chain. It has HTTP or TCP.
type Chain struct {
	Name  string
	Match ChainMatch
	// TLS is nil for plaintext.
	TLS  *ServerTLS
	HTTP *HTTPChain
	TCP  *TCPChain
	// Deny refuses every request, for a security policy that cannot be
	// enforced.
	Deny bool
}

// ChainMatch says which connections a chain takes; empty means all.
type ChainMatch struct {
	DestinationPort uint32
	CIDRs           []string
	ServerNames     []string
	Transport       string
	ALPN            []string
}

// matchesAll reports whether the chain takes every connection.
func (m *ChainMatch) matchesAll() bool {
	return m.DestinationPort == 0 && len(m.CIDRs) == 0 && m.Transport == "" && len(m.ALPN) == 0 && len(names(m)) == 0
}

// ServerTLS is mTLS with identities of the mesh, from the server's side.
type ServerTLS struct {
	// HTTP offers HTTP's protocols in the handshake.
	HTTP bool
	// TrustDomains are those whose identities may connect.
	TrustDomains []string
	// MaxAge is how long a connection may live, so that it does not outlive the
	// client's certificate by much; 0 means for ever. HTTP is drained, TCP cut off.
	MaxAge time.Duration
}

// HTTPChain is an HTTP connection manager.
type HTTPChain struct {
	StatPrefix string
	// RouteName is the RouteTable that is asked for; empty means Inbound.
	RouteName string
	Inbound   *InboundRoute
	// NormalizePath, MergeSlashes and UnescapeSlashes are MeshConfig's
	// pathNormalization.
	NormalizePath, MergeSlashes, UnescapeSlashes bool
	// AllowAbsoluteURL is for explicit HTTP proxies.
	AllowAbsoluteURL bool
	// GRPCWeb translates gRPC-Web.
	GRPCWeb bool
}

// InboundRoute sends every request to the application.
type InboundRoute struct {
	Cluster   ClusterRef
	Operation string
	Retry     bool
}

// TCPChain passes bytes on.
type TCPChain struct {
	StatPrefix string
	// Destinations has one, or several with weights.
	Destinations []WeightedCluster
	IdleTimeout  time.Duration // 0 means Envoy's default
	MaxDuration  time.Duration // 0 means none
	HashSourceIP bool
}

// WeightedCluster is a share of traffic.
type WeightedCluster struct {
	Cluster ClusterRef
	Weight  uint32
}
