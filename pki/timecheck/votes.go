package timecheck

import (
	"net"
	"slices"
	"time"
)

// Bounds on what is agreement.
const (
	// Tolerance is how far the median of the hosts' clocks may be off.
	Tolerance = 5 * time.Minute
	// MinVotes is how many have to vote for a median that counts.
	MinVotes = 3
	// stepAlarm is how far the wall clock may part from the kernel's clock at once, or
	// be behind the saved time.
	stepAlarm = time.Minute
)

// vote is what a host said that its clock shows, on one stream.
type vote struct {
	host, address string
	// origin is the time by the host's clock at which the kernel's clock began: in this
	// form a vote grows no older, whatever the wall clock does.
	origin time.Time
}

// median is the origin by the votes, and how many voted: one a host, its newest
// stream's, and one an address. With an even number the one of the middle two counts
// that is closer to own: half of the votes do not outvote the server.
func median(votes map[uint64]vote, own time.Time) (origin time.Time, n int) {
	newest := map[string]uint64{}
	for stream, v := range votes {
		if last, ok := newest[v.host]; !ok || stream > last {
			newest[v.host] = stream
		}
	}
	byAddress := map[string][]time.Time{}
	for _, stream := range newest {
		v := votes[stream]
		byAddress[v.address] = append(byAddress[v.address], v.origin)
	}
	var all []time.Time
	for _, origins := range byAddress {
		all = append(all, middle(origins, own))
	}
	if len(all) == 0 {
		return time.Time{}, 0
	}
	return middle(all, own), len(all)
}

func middle(times []time.Time, own time.Time) time.Time {
	slices.SortFunc(times, time.Time.Compare)
	upper := times[len(times)/2]
	if len(times)%2 == 1 {
		return upper
	}
	lower := times[len(times)/2-1]
	if upper.Sub(own).Abs() < lower.Sub(own).Abs() {
		return upper
	}
	return lower
}

// ipOf is an address without its port.
func ipOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}
