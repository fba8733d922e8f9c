package view

import (
	"cmp"
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// RouteConfiguration is the input of one RouteConfiguration resource. Its virtual hosts
// have hashes of their own, so that each can be sent by itself (VHDS).
type RouteConfiguration struct {
	base
	Name string
	// VirtualHosts are sorted by name.
	VirtualHosts []*VirtualHost
	// AllPorts means that domains have ports, and that the port of a request's host counts.
	AllPorts bool
	// CatchAll is for requests to unknown hosts; or nil.
	CatchAll *CatchAll
}

// Origins are those of all virtual hosts, sorted.
func (t *RouteConfiguration) Origins() []*mesh.Origin {
	seen := map[*mesh.Origin]bool{}
	for _, h := range t.VirtualHosts {
		for _, o := range h.origins {
			seen[o] = true
		}
	}
	return originsOf(slices.Collect(maps.Keys(seen))...)
}

// CatchAll says what happens to requests to unknown hosts.
type CatchAll struct {
	// Refuse answers 502 (REGISTRY_ONLY).
	Refuse bool
	// Cluster receives the requests otherwise.
	Cluster ClusterRef
	// NoAttemptCount is that of the other virtual hosts.
	NoAttemptCount bool
	// ForwardedHost adds the header x-forwarded-host.
	ForwardedHost bool
}

// VirtualHost is the routes for some domains.
type VirtualHost struct {
	base
	Name    string
	Domains []string
	Routes  []*Route
	// NoAttemptCount leaves out the header x-envoy-attempt-count.
	NoAttemptCount bool
	// RequireTLS redirects requests without TLS to https.
	RequireTLS bool
}

// Route is one HTTP route: a match and an action. Conditions on the proxy's labels or
// namespace have been evaluated.
type Route struct {
	base
	// Rule is nil for the default route of a service. The builder does not read its match
	// and its destination hosts: Match and Destinations have the result.
	Rule *networking.HTTPRoute
	// Match is nil if every request matches.
	Match *networking.HTTPMatchRequest
	// Config is the VirtualService; zero for the default route.
	Config mesh.Key
	// Port is the port that requests come to.
	Port uint32
	// Destinations has one element for each of Rule.Route, or one for the default route.
	Destinations []RouteDestination
	// Mirrors are the mirrored copies, in order: Rule.Mirror, Rule.Mirrors.
	Mirrors []Mirror
	// Retry is nil for Istio's default.
	Retry *networking.HTTPRetry
	// Traced says that spans name what the requests are for.
	Traced bool
	// ForwardedHost adds the header x-forwarded-host if the host is rewritten.
	ForwardedHost bool
	// TLS says that the requests came by TLS.
	TLS bool
	// HTTP3 says that HTTP/3 is served at Port, too: responses announce it.
	HTTP3 bool
}

// RouteDestination is the destination of a share of the requests.
type RouteDestination struct {
	Cluster ClusterRef
	Weight  uint32
	Headers *networking.Headers                               // or nil
	Hash    *networking.LoadBalancerSettings_ConsistentHashLB // or nil
	// AnnounceHTTP offers ALPN protocols by which the server knows that these are HTTP
	// requests, because the port has no declared protocol.
	AnnounceHTTP bool
}

// Mirror is a destination for copies of requests.
type Mirror struct {
	Cluster ClusterRef
	// Millionths is the share of requests that is copied.
	Millionths uint32
}

func compareNames(h *VirtualHost, name string) int { return cmp.Compare(h.Name, name) }
