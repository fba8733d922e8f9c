package view

import (
	"strconv"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// ClusterKind is the kind of a cluster.
type ClusterKind uint8

// The kinds of clusters. A proxy has one PassthroughCluster, one BlackHoleCluster and one
// InboundPassthroughCluster; these have fixed names.
const (
	OutboundCluster ClusterKind = iota
	InboundCluster
	PassthroughCluster
	BlackHoleCluster
	InboundPassthroughCluster
	// SNICluster passes mTLS of the mesh on, which names the cluster as its server.
	SNICluster
)

// String is the name of a cluster of which there is one.
func (k ClusterKind) String() string {
	switch k {
	case PassthroughCluster:
		return "PassthroughCluster"
	case BlackHoleCluster:
		return "BlackHoleCluster"
	case InboundPassthroughCluster:
		return "InboundPassthroughCluster"
	case OutboundCluster:
		return "outbound"
	case InboundCluster:
		return "inbound"
	case SNICluster:
		return "outbound_"
	default:
		return ""
	}
}

// ClusterRef identifies a cluster.
type ClusterRef struct {
	Kind   ClusterKind
	Port   uint32
	Subset string
	Host   mesh.Hostname
}

// Outbound identifies the cluster of a service's port.
func Outbound(host mesh.Hostname, port uint32, subset string) ClusterRef {
	return ClusterRef{Kind: OutboundCluster, Port: port, Subset: subset, Host: host}
}

// statPrefix is Istio's: the name of the cluster.
func statPrefix(c ClusterRef) string {
	switch c.Kind {
	case PassthroughCluster:
		return "PassthroughCluster"
	case BlackHoleCluster:
		return "BlackHoleCluster"
	case InboundPassthroughCluster:
		return "InboundPassthroughCluster"
	case InboundCluster:
		return strings.Join([]string{"inbound", strconv.FormatUint(uint64(c.Port), 10), "", ""}, "|")
	case SNICluster:
		return strings.Join([]string{"outbound", strconv.FormatUint(uint64(c.Port), 10), c.Subset, string(c.Host)}, "_.")
	case OutboundCluster:
		return strings.Join([]string{"outbound", strconv.FormatUint(uint64(c.Port), 10), c.Subset, string(c.Host)}, "|")
	default:
		return ""
	}
}

// Discovery is how a cluster discovers its endpoints.
type Discovery uint8

// The discovery types of Envoy.
const (
	DiscoverEDS Discovery = iota
	DiscoverStatic
	DiscoverStrictDNS
	DiscoverLogicalDNS
	DiscoverOriginalDst
	// DiscoverDynamic resolves the host that each request or connection names.
	DiscoverDynamic
)

// LookupFamily is which addresses of a DNS name a proxy connects to.
type LookupFamily uint8

// The lookup families. LookupAll tries addresses of both families.
const (
	LookupV4 LookupFamily = iota
	LookupV6
	LookupAll
)

// MeshDefaults are the settings of MeshConfig that clusters follow.
type MeshDefaults struct {
	ConnectTimeout time.Duration
	DNSRefreshRate time.Duration
	// H2Upgrade is MeshConfig's h2UpgradePolicy UPGRADE.
	H2Upgrade bool
	Keepalive *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive // or nil
	// ECDHCurves and CipherSuites are MeshConfig's tlsDefaults, for TLS that a DestinationRule
	// asks for; empty means those of Envoy. As in Istio, a client has no minimum version.
	ECDHCurves, CipherSuites []string
}

// PeerTLS is mTLS with identities of the mesh, at the client's side.
type PeerTLS struct {
	// Auto means that some endpoints do not accept mTLS. These are marked.
	Auto bool
	SNI  string
	// Names are the accepted identities; empty means any of TrustDomains.
	Names        []string
	TrustDomains []string
	// MaxAge is how long an HTTP connection is used for new requests. It is a little
	// shorter than at the server; 0 means no limit.
	MaxAge time.Duration
}

// Cluster is the input of one Cluster resource.
type Cluster struct {
	base
	Ref       ClusterRef
	Discovery Discovery
	// Lookup is for clusters that resolve names.
	Lookup   LookupFamily
	Protocol mesh.Protocol
	// Policy is the DestinationRule's traffic policy for this port and subset; or nil.
	Policy *networking.TrafficPolicy
	// TLS is nil if mTLS of the mesh is not used; Policy.Tls may still ask for other TLS.
	TLS *PeerTLS
	// AltNames are the manifest's subjectAltNames and the identities of its workloads, for
	// other TLS.
	AltNames []string
	// FileSecrets gets the certificates of other TLS from the agent.
	FileSecrets bool
	// FileLists has these beside lists of revoked certificates, and in files of any path.
	FileLists bool
	// Localities has the endpoints of a cluster without EDS.
	Localities []LocalityEndpoints
	// LocalityWeighted means that localities get requests by their weights.
	LocalityWeighted bool
	Defaults         MeshDefaults
	// KeepHeaderCase has HTTP/1.1 keep the case of the names of headers.
	KeepHeaderCase bool
	// BindLoopback means that connections come from 127.0.0.6, which capture rules do not
	// redirect.
	BindLoopback bool
	// BindLoopbackIPv6 does the same for IPv6, from ::6.
	BindLoopbackIPv6 bool
	// UpstreamPort replaces the port of the original destination; 0 keeps it.
	UpstreamPort uint32
	// TableLimit is the largest table of consistentHash; 0 means that of Envoy.
	TableLimit uint64
	// Service is whose cluster it is, for metrics; or nil.
	Service *ReportedService
	// Reports is zero for a cluster that carries requests.
	Reports Reports
}

// Endpoints is the input of one ClusterLoadAssignment resource.
type Endpoints struct {
	base
	Ref        ClusterRef
	Localities []LocalityEndpoints
	// Auto is that of the cluster's TLS: endpoints that do not accept mTLS are marked.
	Auto bool
}

// LocalityEndpoints is the endpoints of one locality.
type LocalityEndpoints struct {
	Locality mesh.Locality
	Priority uint32
	// Weight is that of the locality among those of its priority; 0 if the cluster does not
	// balance by it.
	Weight uint32
	// LastResort says that these endpoints get requests only while no endpoint of the first
	// priority may get any.
	LastResort bool
	// Endpoints are sorted by address and port.
	Endpoints []Endpoint
}

// Endpoint is one address of a service.
type Endpoint struct {
	// Address is an IP address, a DNS name, or "unix:///path".
	Address   string
	Port      uint32
	Weight    uint32
	Unhealthy bool
	// MTLS means that the endpoint accepts mTLS of the mesh.
	MTLS bool
	// Workload is whose endpoint it is, for metrics: "name;namespace;canonical name;canonical
	// revision;cluster"; or empty.
	Workload string
}
