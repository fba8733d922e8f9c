package loglimit

import "time"

// What a log gets of peers that are refused.
const (
	unauthenticatedBurst, unauthenticatedEvery = 10, 5 * time.Second
	hostBurst, hostEvery                       = 5, 30 * time.Second
	hostsBurst, hostsEvery                     = 100, time.Second
)

// Peers bounds the lines that refused peers cause: those that have proved nothing
// share theirs, however many addresses they have; a host has its own, and all
// hosts together so many. It must not be copied.
type Peers struct {
	unauthenticated Limiter
	hosts           ByKey
}

// NewPeers makes one with the usual limits.
func NewPeers() *Peers {
	return &Peers{
		unauthenticated: Limiter{Burst: unauthenticatedBurst, Every: unauthenticatedEvery},
		hosts:           ByKey{Each: Allowance{hostBurst, hostEvery}, All: Allowance{hostsBurst, hostsEvery}},
	}
}

// Allow reports whether a line may be written about a peer, and how many were left
// out since the last one. The host is what the peer has proved, or empty.
func (p *Peers) Allow(host string, now time.Time) (omitted int, ok bool) {
	if host == "" {
		return p.unauthenticated.Allow(now)
	}
	return p.hosts.Allow(host, now)
}
