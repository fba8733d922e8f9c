package view

import (
	"cmp"
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// RouteTable is the input of one RouteConfiguration resource. It is a tree: its
// virtual hosts have hashes of their own, so that one of them can travel alone.
type RouteTable struct {
	base
	Name string
	// Hosts are sorted by name.
	Hosts []*VirtualHost
	// CatchAll takes unknown hosts; nil means that there are none.
	CatchAll *CatchAll
}

// Origins are those of all hosts; sorted.
func (t *RouteTable) Origins() []*mesh.Origin {
	seen := map[*mesh.Origin]bool{}
	for _, h := range t.Hosts {
		for _, o := range h.origins {
			seen[o] = true
		}
	}
	return originsOf(slices.Collect(maps.Keys(seen))...)
}

// CatchAll is what becomes of requests to unknown hosts.
type CatchAll struct {
	// Refuse answers 502 (REGISTRY_ONLY).
	Refuse bool
	// Cluster gets the requests otherwise.
	Cluster ClusterRef
}

// VirtualHost is the routes of some domains.
type VirtualHost struct {
	base
	Name    string
	Domains []string
	Routes  []*Route
}

// Route is one rule: a match and what follows. What depends on the proxy's
// labels or namespace has been decided already.
type Route struct {
	base
	// Rule is nil for the default route of a service. Of its fields the builder
	// ignores match and the destinations' hosts: Match and Destinations say
	// what has become of them.
	Rule *networking.HTTPRoute
	// Match is nil if everything matches.
	Match *networking.HTTPMatchRequest
	// Config is the VirtualService; zero for the default route.
	Config mesh.Key
	// Port is the one that the request came to.
	Port uint32
	// Destinations has one element for each of Rule.Route, or just one.
	Destinations []RouteDestination
	// Mirrors are the copies that are sent, in order: Rule.Mirror, Rule.Mirrors.
	Mirrors []Mirror
	// Retry is nil for Istio's default.
	Retry *networking.HTTPRetry
}

// RouteDestination is where a share of requests goes.
type RouteDestination struct {
	Cluster ClusterRef
	Weight  uint32
	Headers *networking.Headers                               // or nil
	Hash    *networking.LoadBalancerSettings_ConsistentHashLB // or nil
}

// Mirror is a copy of requests.
type Mirror struct {
	Cluster ClusterRef
	// Millionths is the share that is copied.
	Millionths uint32
}

func compareNames(h *VirtualHost, name string) int { return cmp.Compare(h.Name, name) }
