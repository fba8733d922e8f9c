package agents

import (
	"maps"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Release takes the silent workloads out of load balancing until their agents return, because a
// person says that they are gone. It reports whether there were any.
func (s *Source) Release() bool {
	defer s.wakeRun()
	s.mu.Lock()
	defer s.mu.Unlock()
	released := false
	for _, l := range s.sorted {
		if l.silent {
			l.remove()
			s.updateLease(l)
			released = true
		}
	}
	return released
}

// HostsChanged takes out the workloads of hosts that are not on record any more.
func (s *Source) HostsChanged() {
	if s.stands == nil {
		return
	}
	s.mu.Lock()
	var away []*lease
	var of []claim
	for _, l := range s.sorted {
		if l.host != "" && len(l.streams) == 0 {
			away, of = append(away, l), append(of, l.claim)
		}
	}
	s.mu.Unlock()
	s.removeUnlisted(away, of)
	s.wakeRun()
}

// removeUnlisted takes those of some leases out whose claim is of a host that is not on record.
func (s *Source) removeUnlisted(leases []*lease, claims []claim) {
	for i, l := range leases {
		c := claims[i]
		if s.stands == nil || c.host == "" || s.stands(c.host, c.binding) {
			continue
		}
		s.mu.Lock()
		if l.claim == c && len(l.streams) == 0 && !l.forgotten {
			l.remove()
			s.updateLease(l)
		}
		s.mu.Unlock()
	}
}

// look applies the passing of time, and returns a fragment if anything changed, and when to
// call it again.
func (s *Source) look(now time.Time) (*mesh.Fragment, time.Time) {
	var sw sweep
	s.pass(&sw, now)
	s.removeUnlisted(sw.leases, sw.claims)
	s.logChanges(&sw)
	return s.fragment(), sw.next
}

// pass lets time pass for all leases.
func (s *Source) pass(sw *sweep, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	leases := slices.SortedFunc(maps.Keys(s.timed), func(a, b *lease) int { return compareIDs(a.id, b.id) })
	sw.run(leases, s.limits.grace, now)
	switch {
	case s.settleOver || s.settleAt.IsZero():
	case s.settleAt.After(now):
		sw.wake(s.settleAt)
	default:
		s.settleOver = true
		for _, l := range s.sorted {
			if l.awaited && l.host != "" {
				sw.silence(l)
				leases = append(leases, l)
			}
		}
	}
	for _, l := range leases {
		s.updateLease(l)
	}
}

// fragment is what the registry gets if something changed since the last one, or nil.
func (s *Source) fragment() *mesh.Fragment {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.changed && len(s.changedLeases) == 0 {
		return nil
	}
	s.changed = false
	s.rewrite()
	return &mesh.Fragment{Source: sourceName, Health: s.healths}
}

// rewrite brings the lists up to date.
func (s *Source) rewrite() {
	var healths, down []mesh.Delta[*mesh.HealthReport]
	out := func(r *mesh.HealthReport) *mesh.HealthReport {
		if r != nil && (r.Health == mesh.Unhealthy || r.Health == mesh.Silent) {
			return r
		}
		return nil
	}
	for l := range s.changedLeases {
		before := l.last
		if l.last = l.report(); before == l.last {
			continue
		}
		healths = append(healths, mesh.Delta[*mesh.HealthReport]{Old: before, New: l.last})
		if d := (mesh.Delta[*mesh.HealthReport]{Old: out(before), New: out(l.last)}); d.Old != d.New {
			down = append(down, d)
		}
	}
	clear(s.changedLeases)
	s.healths, s.down = mesh.PatchReports(s.healths, healths), mesh.PatchReports(s.down, down)
}

func (s *Source) logChanges(sw *sweep) {
	if n := len(sw.leases); n > 0 {
		s.log.Warn("agents are silent; their workloads get requests only where no other is left", "workloads", n, "first", sw.leases[0].id.String())
	}
}

// sweep is what the passing of time does to leases.
type sweep struct {
	// leases became silent now, and claims are what they had.
	leases []*lease
	claims []claim
	// next is when to look again; zero means not before something happens.
	next time.Time
}

// run updates the timed leases.
func (s *sweep) run(leases []*lease, grace time.Duration, now time.Time) {
	for _, l := range leases {
		over := l.lost.Add(grace)
		switch {
		case len(l.streams) > 0:
			s.confirm(l, now)
		case over.After(now):
			s.wake(over)
		default:
			s.silence(l)
		}
	}
}

// silence makes a lease silent.
func (s *sweep) silence(l *lease) {
	l.silent, l.awaited = true, false
	s.leases, s.claims = append(s.leases, l), append(s.claims, l.claim)
}

// confirm takes a workload back in whose agent is connected and does not report: it may not
// probe any more.
func (s *sweep) confirm(l *lease, now time.Time) {
	switch {
	case l.confirmBy.IsZero():
	case l.confirmBy.After(now):
		s.wake(l.confirmBy)
	default:
		l.confirmBy, l.left = time.Time{}, false
	}
}

func (s *sweep) wake(at time.Time) {
	if s.next.IsZero() || at.Before(s.next) {
		s.next = at
	}
}
