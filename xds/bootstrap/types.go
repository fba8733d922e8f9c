package bootstrap

const (
	// HealthType is the type of the requests by which an agent reports the
	// health of its workload on the ADS stream, as Istio's agent does
	// (pkg/istio-agent/health, v3.HealthInfoType): no error_detail means
	// healthy, an error_detail means unhealthy and its message says why. Such
	// a request is never answered.
	HealthType = "type.googleapis.com/istio.v1.HealthInformation"

	// EnvoyStateType is the type of the requests by which a relay reports what
	// has become of its Envoy: resource_names_subscribe has one element, an
	// [EnvoyState]. Such a request is never answered.
	EnvoyStateType = "type.googleapis.com/fairlead.v1.EnvoyState"

	// FeatureVirtualHosts is among the client_features of the node of a relay: it
	// takes the virtual hosts of route configurations by themselves (VHDS), whatever
	// its Envoy can, and folds them.
	FeatureVirtualHosts = "fairlead.virtual-hosts"
)

// EnvoyState is what a relay says of its Envoy.
type EnvoyState string

// The states of an Envoy, as its relay sees it.
const (
	EnvoyAbsent    EnvoyState = "absent"    // no process, or none connected
	EnvoyStarting  EnvoyState = "starting"  // connected, not yet live
	EnvoyLive      EnvoyState = "live"      // accepted everything and serves
	EnvoyRejecting EnvoyState = "rejecting" // serves, and refuses part of what it was sent
)
