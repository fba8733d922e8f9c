package bootstrap

const (
	// HealthType is the type of the requests by which an agent reports the
	// health of its workload on the ADS stream, as Istio's agent does
	// (pkg/istio-agent/health, v3.HealthInfoType): no error_detail means
	// healthy, an error_detail means unhealthy and its message says why. Such
	// a request is never answered.
	HealthType = "type.googleapis.com/istio.v1.HealthInformation"

	// EnvoyStateType is the type of the requests by which a relay reports the
	// state of its Envoy: resource_names_subscribe has one element, an
	// [EnvoyState], or a second one after it, [Credentials] as JSON. Such a request is never
	// answered. Control planes that know no credentials take no notice of one with two elements.
	EnvoyStateType = "type.googleapis.com/fairlead.v1.EnvoyState"

	// ProxyConfigType is the type of the resource with which the control plane tells an agent
	// how its proxy is to run: an istio.mesh.v1alpha1.ProxyConfig, as Istio's PCDS
	// (pkg/model, ProxyConfigType). Only agents subscribe to it, to [ProxyConfigName]; it is
	// never for an Envoy. Its proxy_metadata also says who the workload is: see [Workload].
	ProxyConfigType = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"
	// ProxyConfigName is the name of that one resource.
	ProxyConfigName = "default"

	// NameType is the type of the resources that say what an agent answers to DNS queries: one for
	// each host name, envoy.data.dns.v3.DnsTable.DnsVirtualDomain. Only agents subscribe to it; it
	// is never for an Envoy. See [FeatureNames].
	NameType = "type.googleapis.com/envoy.data.dns.v3.DnsTable.DnsVirtualDomain"
	// NameTable is the name of a resource that every control plane has that knows names.
	NameTable = "."
	// NamePorts is the beginning of the name of a resource with the ports of a host name, for SRV
	// records. The rest is the host name.
	NamePorts = "srv/"

	// FeatureVirtualHosts is in the client_features of a relay's node: the relay supports
	// VHDS, whatever its Envoy does, and merges virtual hosts into route configurations.
	FeatureVirtualHosts = "fairlead.virtual-hosts"

	// FeatureFileSecrets is in the client_features of an agent that serves certificates in
	// files as secrets, with Istio's names.
	FeatureFileSecrets = "fairlead.file-secrets" //nolint:gosec // G101: the name of a feature

	// FeatureFileLists is in the client_features of an agent with [FeatureFileSecrets] that also
	// serves lists of revoked certificates, and files of any path.
	FeatureFileLists = "fairlead.file-lists"

	// FeatureAccessLogService is in the client_features of an agent that takes the access log of
	// its Envoy at the static cluster [ALSCluster].
	FeatureAccessLogService = "fairlead.access-log-service"

	// FeatureRetries is in the client_features of a relay that itself tries again what its Envoy
	// rejected because of its host: the control plane does not send it again.
	FeatureRetries = "fairlead.retries"

	// FeatureNames is in the client_features of an agent that answers DNS queries.
	FeatureNames = "fairlead.names"
)

// EnvoyState is the state that a relay reports of its Envoy.
type EnvoyState string

// The states of an Envoy, as its relay reports them.
const (
	EnvoyAbsent    EnvoyState = "absent"    // no process, or none connected
	EnvoyStarting  EnvoyState = "starting"  // connected, not yet live
	EnvoyLive      EnvoyState = "live"      // accepted everything and serves
	EnvoyRejecting EnvoyState = "rejecting" // serves, and rejects part of what it was sent
)
