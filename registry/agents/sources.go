package agents

import (
	"net/netip"
	"time"
)

const (
	// severalFor is how long an address proves nothing after several hosts were
	// connected from it for overlap: it is that of a NAT or of a balancer. What is
	// shorter may be a machine that got the address of one that is gone.
	severalFor = 24 * time.Hour
	overlap    = 2 * time.Minute
	maxSeveral = 1024
)

// sources are the hosts that are connected from each address.
type sources struct {
	at map[netip.Addr]*origin
	// several is until when an address counts as that of several hosts.
	several map[netip.Addr]time.Time
}

// origin is one address that hosts connect from.
type origin struct {
	hosts map[string]int // streams
	since time.Time      // when there was more than one host; or zero
}

// opened reports whether several hosts have the address now, and had not before.
func (s *sources) opened(a netip.Addr, host string, now time.Time) (newly bool) {
	if !a.IsValid() {
		return false
	}
	before := s.shared(a, now)
	o := s.at[a]
	if o == nil {
		o = &origin{hosts: map[string]int{}}
		s.at[a] = o
	}
	o.hosts[host]++
	if len(o.hosts) == 2 && o.since.IsZero() {
		o.since = now
	}
	return !before && s.shared(a, now)
}

// closed reports whether the address is remembered as that of several hosts now.
func (s *sources) closed(a netip.Addr, host string, now time.Time) (noted bool) {
	o := s.at[a]
	if o == nil || o.hosts[host] == 0 {
		return false
	}
	if len(o.hosts) > 1 && now.Sub(o.since) >= overlap {
		noted = s.note(a, now.Add(severalFor))
	}
	if o.hosts[host]--; o.hosts[host] == 0 {
		delete(o.hosts, host)
	}
	switch len(o.hosts) {
	case 0:
		delete(s.at, a)
	case 1:
		o.since = time.Time{}
	}
	return noted
}

// note remembers an address that several hosts have.
func (s *sources) note(a netip.Addr, until time.Time) (noted bool) {
	had, known := s.several[a]
	if !known && len(s.several) >= maxSeveral {
		oldest := a
		for b, t := range s.several {
			if oldest == a || t.Before(s.several[oldest]) {
				oldest = b
			}
		}
		delete(s.several, oldest)
	}
	s.several[a] = until
	return !known || until.Sub(had) > time.Hour
}

// shared reports whether several hosts connect from an address, or did lately.
func (s *sources) shared(a netip.Addr, now time.Time) bool {
	o := s.at[a]
	return o != nil && len(o.hosts) > 1 || now.Before(s.several[a])
}
