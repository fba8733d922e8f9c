package view

import (
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// ClusterKind tells the families of clusters apart.
type ClusterKind uint8

// The families of clusters. Those of which a proxy has exactly one have a fixed
// name.
const (
	OutboundCluster ClusterKind = iota
	InboundCluster
	PassthroughCluster
	BlackHoleCluster
	InboundPassthroughCluster
)

// ClusterRef names a cluster.
type ClusterRef struct {
	Kind   ClusterKind
	Port   uint32
	Subset string
	Host   mesh.Hostname
}

// Outbound names the cluster of a service's port.
func Outbound(host mesh.Hostname, port uint32, subset string) ClusterRef {
	return ClusterRef{Kind: OutboundCluster, Port: port, Subset: subset, Host: host}
}

// Discovery says how a cluster finds its endpoints.
type Discovery uint8

// The ways to find endpoints, as Envoy has them.
const (
	DiscoverEDS Discovery = iota
	DiscoverStatic
	DiscoverStrictDNS
	DiscoverLogicalDNS
	DiscoverOriginalDst
)

// MeshDefaults are the settings of the mesh that clusters follow.
type MeshDefaults struct {
	ConnectTimeout time.Duration
	DNSRefreshRate time.Duration
	// H2Upgrade is MeshConfig's h2UpgradePolicy UPGRADE.
	H2Upgrade bool
	Keepalive *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive // or nil
}

// PeerTLS is mTLS with identities of the mesh, from the client's side.
type PeerTLS struct {
	// Auto means that not every endpoint takes mTLS, and those say so that do
	// not.
	Auto bool
	SNI  string
	// Names are the identities that are accepted; empty means any of
	// TrustDomains.
	Names        []string
	TrustDomains []string
	// MaxAge is how long a connection for HTTP takes new requests, which is a
	// little shorter than the server's; 0 means for ever.
	MaxAge time.Duration
}

// Cluster is the input of one Cluster resource.
type Cluster struct {
	base
	Ref       ClusterRef
	Discovery Discovery
	Protocol  mesh.Protocol
	// Policy is what the DestinationRule says for this port and subset; or nil.
	Policy *networking.TrafficPolicy
	// TLS is nil where the mesh's mTLS is not used; Policy.Tls may still ask
	// for TLS of another kind.
	TLS *PeerTLS
	// AltNames are the manifest's subjectAltNames, for TLS of another kind.
	AltNames []string
	// Localities has the endpoints of a cluster without EDS.
	Localities []Locality
	Defaults   MeshDefaults
	// BindLoopback means connections come from 127.0.0.6, which capture rules
	// leave alone.
	BindLoopback bool
	// UpstreamPort replaces the port of the original destination; 0 keeps it.
	UpstreamPort uint32
}

// Endpoints is the input of one ClusterLoadAssignment resource.
type Endpoints struct {
	base
	Ref        ClusterRef
	Localities []Locality
	// Auto is that of the cluster's TLS: here endpoints say that they do not
	// take mTLS.
	Auto bool
}

// Locality is the endpoints of one place.
type Locality struct {
	Place    mesh.Locality
	Priority uint32
	// Endpoints are sorted by address and port.
	Endpoints []Endpoint
}

// Endpoint is one address that serves.
type Endpoint struct {
	// Address is an IP address, a DNS name, or "unix:///path".
	Address   string
	Port      uint32
	Weight    uint32
	Unhealthy bool
	// MTLS means that the endpoint takes mTLS of the mesh.
	MTLS bool
}
