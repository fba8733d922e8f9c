package timecheck

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead/fairlead/internal/peeraddr"
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

// vote is the clock that a host reported, on one stream.
type vote struct {
	host, address string
	// origin is the time by the host's clock at which the kernel's clock began: in this
	// form a vote grows no older, whatever the wall clock does.
	origin time.Time
}

// ballots are the votes that count, by where they come from: one a host, its newest
// stream's, and one an address or /64 of IPv6, of which one machine may have all
// addresses. Where there are too few of these, as in a mesh of one network, each
// address counts.
func ballots(votes map[uint64]vote) map[string][]vote {
	newest := map[string]uint64{}
	for stream, v := range votes {
		if last, ok := newest[v.host]; !ok || stream > last {
			newest[v.host] = stream
		}
	}
	by := func(where func(address string) string) map[string][]vote {
		out := map[string][]vote{}
		for _, stream := range newest {
			v := votes[stream]
			out[where(v.address)] = append(out[where(v.address)], v)
		}
		return out
	}
	if out := by(peeraddr.Group); len(out) >= MinVotes {
		return out
	}
	return by(peeraddr.Host)
}

// addressVote is the origin by all hosts at one address.
func addressVote(at []vote, own time.Time) time.Time {
	origins := make([]time.Time, len(at))
	for i, v := range at {
		origins[i] = v.origin
	}
	return middle(origins, own)
}

// median is the origin by the votes, and how many voted: one a host, its newest
// stream's, and one an address or network. With an even number the one of the middle two counts
// that is closer to own: half of the votes do not outvote the server.
func median(votes map[uint64]vote, own time.Time) (origin time.Time, n int) {
	var all []time.Time
	for _, at := range ballots(votes) {
		all = append(all, addressVote(at, own))
	}
	if len(all) == 0 {
		return time.Time{}, 0
	}
	return middle(all, own), len(all)
}

// Voter is a host that is part of the majority against the server's clock.
type Voter struct {
	Host    string        `json:"host"`
	Address string        `json:"address"`
	Off     time.Duration `json:"off"`
}

// maxVoters bounds how many hosts are named.
const maxVoters = 10

// against are the hosts whose votes are off to the same side as the median, and how
// many there are beyond those: of each address one, the farthest off first, before any
// has a second. Many hosts at one address, which have one vote, hide nobody.
func against(votes map[uint64]vote, own time.Time, off time.Duration) (list []Voter, more int) {
	sided := func(t time.Time) bool {
		d := t.Sub(own)
		return d.Abs() > Tolerance && (d > 0) == (off > 0)
	}
	farther := func(a, b vote) int {
		return cmp.Or(cmp.Compare(b.origin.Sub(own).Abs(), a.origin.Sub(own).Abs()), cmp.Compare(a.host, b.host))
	}
	rank := map[string]int{} // of a host at its address
	for _, at := range ballots(votes) {
		if !sided(addressVote(at, own)) {
			continue
		}
		slices.SortFunc(at, farther)
		for i, v := range at {
			if sided(v.origin) {
				rank[v.host] = i
				list = append(list, Voter{v.host, v.address, v.origin.Sub(own)})
			}
		}
	}
	slices.SortFunc(list, func(a, b Voter) int {
		return cmp.Or(cmp.Compare(rank[a.Host], rank[b.Host]), cmp.Compare(b.Off.Abs(), a.Off.Abs()), cmp.Compare(a.Host, b.Host))
	})
	if more = len(list) - maxVoters; more <= 0 {
		return list, 0
	}
	return slices.Clone(list[:maxVoters]), more
}

// String is a voter, for people.
func (v Voter) String() string {
	return fmt.Sprintf("%s at %s (%+.0f s)", v.Host, v.Address, v.Off.Seconds())
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
