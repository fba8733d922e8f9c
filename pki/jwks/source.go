package jwks

import (
	"cmp"
	"slices"
	"time"

	"github.com/fairlead/fairlead/internal/safetext"
)

// Source asks for a key set.
type Source struct {
	// Issuer is the issuer of the tokens. If URI is empty, its OpenID configuration says where
	// the keys are, as in Istio.
	Issuer string
	// URI is where the keys are, or empty.
	URI string
	// Timeout is the time for one attempt, with discovery and redirects. 0 or less means
	// DefaultTimeout; it is MaxTimeout at most. Of sources with one location, the longest
	// counts.
	Timeout time.Duration
	// Private says that keys may be fetched from private addresses: RFC 1918, unique local
	// IPv6, carrier-grade NAT.
	Private bool
	// Owner is who asks, a namespace for instance: each has a fair share.
	Owner string
}

func (s Source) location() location {
	if s.URI != "" {
		return location{s.URI, false, s.Private}
	}
	return location{s.Issuer, true, s.Private}
}

// maxNames bounds the issuers that a status names.
const maxNames = 5

// wish is what all sources together want of one location.
type wish struct {
	timeout time.Duration
	owners  []string // sorted
	issuers []string // sorted, the first few
}

// plan says what is wanted, most locations at most. Each owner has its first ones before
// anybody has more.
func plan(sources []Source, most int) (wishes map[location]*wish, over map[location]struct{}) {
	sources = slices.Clone(sources)
	slices.SortFunc(sources, func(a, b Source) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), compareLocations(a.location(), b.location()), cmp.Compare(a.Issuer, b.Issuer))
	})
	all := map[location]*wish{}
	rank := map[location]int{} // the best one among its owners
	place := 0
	for i, s := range sources {
		l := s.location()
		if i > 0 && sources[i-1].Owner != s.Owner {
			place = 0
		} else if i > 0 && sources[i-1].location() != l {
			place++
		}
		w := all[l]
		if w == nil {
			w = &wish{}
			all[l], rank[l] = w, place
		}
		rank[l] = min(rank[l], place)
		w.timeout = max(w.timeout, s.timeout())
		if n := len(w.owners); n == 0 || w.owners[n-1] != s.Owner {
			w.owners = append(w.owners, s.Owner)
		}
		if name := safetext.Sanitize(s.Issuer, maxShownURI); len(w.issuers) < maxNames && !slices.Contains(w.issuers, name) {
			w.issuers = append(w.issuers, name)
		}
	}
	for _, w := range all {
		slices.Sort(w.issuers)
	}
	if len(all) <= most {
		return all, nil
	}
	order := make([]location, 0, len(all))
	for l := range all {
		order = append(order, l)
	}
	slices.SortFunc(order, func(a, b location) int { return cmp.Or(cmp.Compare(rank[a], rank[b]), compareLocations(a, b)) })
	over = make(map[location]struct{}, len(order)-most)
	for _, l := range order[most:] {
		over[l] = struct{}{}
		delete(all, l)
	}
	return all, over
}

func compareLocations(a, b location) int {
	return cmp.Or(cmp.Compare(a.uri, b.uri), compareBools(a.discovery, b.discovery), compareBools(a.private, b.private))
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

func (s Source) timeout() time.Duration {
	if s.Timeout <= 0 {
		return DefaultTimeout
	}
	return min(s.Timeout, MaxTimeout)
}
