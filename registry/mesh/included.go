package mesh

import networking "istio.io/api/networking/v1alpha3"

// Limits of what VirtualServices include by delegates: each match of a route with a delegate is combined with each
// match there, and the delegate may be of another namespace, which does not know who includes it how often.
const (
	// MaxIncluded is how many matches one VirtualService may include.
	MaxIncluded = 100_000
	// MaxIncludedByNamespace is how many all VirtualServices of a namespace may include.
	MaxIncludedByNamespace = 1_000_000
)

// IncludableMatches is how many matches each match of a route with this delegate makes; a route without a match counts
// as one.
func IncludableMatches(delegate *networking.VirtualService) int {
	n := 0
	for _, r := range delegate.GetHttp() {
		n += max(1, len(r.GetMatch()))
	}
	return n
}
