package metakeys

// Annotations of objects.
const (
	// ProxyConfig has a ProxyConfig as YAML, for the proxies of a workload or of a group (Istio's
	// annotation.ProxyConfig).
	ProxyConfig = "proxy.istio.io/config"
	// DryRun says that an AuthorizationPolicy is only tried out.
	DryRun = "istio.io/dry-run"
	// AutoRegistrationGroup names the WorkloadGroup that a WorkloadEntry belongs to (Istio's
	// annotation.IoIstioAutoRegistrationGroup).
	AutoRegistrationGroup = "istio.io/autoRegistrationGroup"
	// Host names the host that alone may claim the address of a WorkloadEntry.
	Host = "fairlead.io/host"

	// GatewaySemantics and RouteSemantics mark what Istio makes of objects of the Gateway API; some
	// rules of validation do not hold for it.
	GatewaySemantics = "internal.istio.io/gateway-semantics"
	RouteSemantics   = "internal.istio.io/route-semantics"
	// AlwaysReject, ParentNamespace and Parents are internal to Istio.
	AlwaysReject    = "internal.istio.io/webhook-always-reject"
	ParentNamespace = "internal.istio.io/parent-namespace"
	Parents         = "internal.istio.io/parents"

	// PrometheusScrape and those after it say where an application has its metrics.
	PrometheusScrape = "prometheus.io/scrape"
	PrometheusPath   = "prometheus.io/path"
	PrometheusPort   = "prometheus.io/port"
	PrometheusScheme = "prometheus.io/scheme"
)

// Labels of objects.
const (
	// TLSMode on a workload says whether it accepts mTLS. A registration in Consul may have it as a
	// tag.
	TLSMode = "security.istio.io/tlsMode"
	// IstioLocality is where a workload is, if its field does not say it.
	IstioLocality = "istio-locality"
	// TopologyRegion and those after it say the same as a locality and a network.
	TopologyRegion  = "topology.kubernetes.io/region"
	TopologyZone    = "topology.kubernetes.io/zone"
	TopologySubzone = "topology.istio.io/subzone"
	TopologyNetwork = "topology.istio.io/network"
	TopologyCluster = "topology.istio.io/cluster"
	// UseWaypoint names a waypoint, which there is none of.
	UseWaypoint = "istio.io/use-waypoint"
	// AutoallocateIP says whether a ServiceEntry gets virtual addresses (Istio's
	// label.NetworkingEnableAutoallocateIp).
	AutoallocateIP = "networking.istio.io/enable-autoallocate-ip"

	// WorkloadName and those after it say who a workload is in metrics and spans.
	WorkloadName      = "service.istio.io/workload-name"
	CanonicalName     = "service.istio.io/canonical-name"
	CanonicalRevision = "service.istio.io/canonical-revision"
	KubernetesName    = "app.kubernetes.io/name"
	KubernetesVersion = "app.kubernetes.io/version"
	App               = "app"
	Version           = "version"

	// ConsulPrefix begins the name of every label that is reserved for the catalog.
	ConsulPrefix = "consul.fairlead.io/"
	// ConsulService, ConsulDatacenter and ConsulNode are where an instance is registered.
	ConsulService    = ConsulPrefix + "service"
	ConsulDatacenter = ConsulPrefix + "datacenter"
	ConsulNode       = ConsulPrefix + "node"
)

// Keys of registrations in Consul: of metadata, which may be tags KEY=VALUE too where All says so.
const (
	ServiceNamespace = "fairlead-namespace"
	ServiceAccount   = "fairlead-service-account"
	ServiceTLS       = "fairlead-tls"
	ServiceProtocol  = "protocol"

	NodeExternal = "external-node"
	NodeRegion   = "region"
	NodeZone     = "zone"
	NodeSubZone  = "sub-zone"
	NodeSubzone  = "subzone"

	AddressVirtual       = "virtual"
	AddressConsulVirtual = "consul-virtual"
	AddressLAN           = "lan"
	AddressLANIPv4       = "lan_ipv4"
	AddressLANIPv6       = "lan_ipv6"
	AddressWAN           = "wan"
	AddressWANIPv4       = "wan_ipv4"
	AddressWANIPv6       = "wan_ipv6"
)

// Place is where a key stands.
type Place string

// The places.
const (
	Annotation  Place = "annotation"
	Label       Place = "label"
	ServiceMeta Place = "Consul service metadata"
	ServiceTag  Place = "Consul service tag"
	NodeMeta    Place = "Consul node metadata"
	Address     Place = "Consul tagged address"
)

// Key is a name in a place.
type Key struct {
	Place Place
	Name  string
}

// String is PLACE NAME.
func (k Key) String() string { return string(k.Place) + " " + k.Name }

// All are the keys that have a meaning.
func All() []Key {
	var out []Key
	for _, at := range []struct {
		place Place
		names []string
	}{
		{Annotation, []string{
			ProxyConfig, DryRun, AutoRegistrationGroup, Host, GatewaySemantics, RouteSemantics, AlwaysReject, ParentNamespace, Parents,
			PrometheusScrape, PrometheusPath, PrometheusPort, PrometheusScheme,
		}},
		{Label, []string{
			TLSMode, IstioLocality, TopologyRegion, TopologyZone, TopologySubzone, TopologyNetwork, TopologyCluster, UseWaypoint, AutoallocateIP,
			WorkloadName, CanonicalName, CanonicalRevision, KubernetesName, KubernetesVersion, App, Version,
			ConsulService, ConsulDatacenter, ConsulNode,
		}},
		{ServiceMeta, []string{ServiceNamespace, ServiceAccount, ServiceTLS, ServiceProtocol}},
		{ServiceTag, []string{ServiceNamespace, ServiceAccount, ServiceTLS, TLSMode}},
		{NodeMeta, []string{NodeExternal, NodeRegion, NodeZone, NodeSubZone, NodeSubzone}},
		{Address, []string{AddressVirtual, AddressConsulVirtual, AddressLAN, AddressLANIPv4, AddressLANIPv6, AddressWAN, AddressWANIPv4, AddressWANIPv6}},
	} {
		for _, name := range at.names {
			out = append(out, Key{at.place, name})
		}
	}
	return out
}
