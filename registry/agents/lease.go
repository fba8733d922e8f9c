package agents

import (
	"cmp"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// goneReason is the reason of a workload whose agent did not come back.
const goneReason = "agent gone"

// id names a workload.
type id struct {
	account mesh.ServiceAccount
	address string
}

func compareIDs(a, b id) int {
	return cmp.Or(cmp.Compare(a.account.Namespace, b.account.Namespace),
		cmp.Compare(a.account.Name, b.account.Name), cmp.Compare(a.address, b.address))
}

// lease is what is known of one workload.
type lease struct {
	id id
	// streams are open, in the order in which they were opened.
	streams []uint64
	// reporter is the stream that spoke last, or 0.
	reporter uint64
	// said is what is believed of what the agent said, with the reason.
	said   mesh.Health
	reason string
	// confirmBy is when an unhealthy report from before a reconnect stops to
	// count unless the agent repeats it; or zero.
	confirmBy time.Time

	// lost is when the last stream ended; zero while there is one.
	lost time.Time
	// held says that too many were lost with it; gone that the grace is over.
	held, gone bool

	// last is what was told others of its health; nil where that is unknown.
	last *mesh.HealthReport
	// counted is the State that the source counts it under; forgotten, that it
	// is none of the source's any more.
	counted   State
	forgotten bool
}

// told reports whether others know of a state of health.
func (l *lease) told(health mesh.Health, reason string) bool {
	if l.last == nil {
		return health == mesh.HealthUnknown
	}
	return l.last.Health == health && l.last.Reason == reason
}

// news is what others are to be told: what they were told last, where that is
// still right.
func (l *lease) news() *mesh.HealthReport {
	health, reason := l.health()
	switch {
	case l.forgotten || health == mesh.HealthUnknown:
		return nil
	case l.told(health, reason):
		return l.last
	}
	return &mesh.HealthReport{
		ServiceAccount: l.id.account, Address: l.id.address, Health: health, Reason: reason, Own: true,
	}
}

// restless reports whether the passing of time changes something.
func (l *lease) restless() bool {
	if len(l.streams) > 0 {
		return !l.confirmBy.IsZero()
	}
	return !l.gone
}

// opened takes a new stream. Of too many, the oldest is forgotten.
func (l *lease) opened(stream uint64, limits limits, now time.Time) (forgotten uint64) {
	if len(l.streams) == limits.streams {
		forgotten = l.streams[0]
		l.streams = slices.Delete(l.streams, 0, 1)
	}
	if len(l.streams) == 0 && l.said == mesh.Unhealthy {
		l.confirmBy = now.Add(limits.grace)
	}
	l.streams = append(l.streams, stream)
	l.lost, l.held, l.gone = time.Time{}, false, false
	return forgotten
}

// report takes what a stream says, unless a newer stream has spoken.
func (l *lease) report(stream uint64, health mesh.Health, reason string) {
	at := slices.Index(l.streams, stream)
	if at < 0 || at < slices.Index(l.streams, l.reporter) {
		return
	}
	l.reporter, l.said, l.reason, l.confirmBy = stream, health, reason, time.Time{}
}

// closed takes the end of a stream.
func (l *lease) closed(stream uint64, now time.Time) {
	at := slices.Index(l.streams, stream)
	if at < 0 {
		return
	}
	l.streams = slices.Delete(l.streams, at, at+1)
	if len(l.streams) > 0 {
		return
	}
	l.lost, l.reporter, l.confirmBy = now, 0, time.Time{}
	if l.said != mesh.Unhealthy {
		l.said, l.reason = mesh.HealthUnknown, ""
	}
}

// expire takes the workload out.
func (l *lease) expire() { l.gone, l.held = true, false }

// health is what counts, and why.
func (l *lease) health() (mesh.Health, string) {
	switch {
	case l.said == mesh.Unhealthy:
		return mesh.Unhealthy, l.reason
	case l.gone:
		return mesh.Unhealthy, goneReason
	default:
		return l.said, ""
	}
}

// limits are the settings of a Source.
type limits struct {
	grace   time.Duration
	share   float64
	floor   int
	streams int // of one workload
}

// tooMany reports whether so many lost streams are more likely our own doing.
func (l limits) tooMany(lost, connected int) bool {
	return lost >= l.floor && float64(lost) > l.share*float64(lost+connected)
}

// sweep is what the passing of time does to leases.
type sweep struct {
	// gone and held are those that became so now, freed those that are held no
	// longer.
	gone, held, freed []id
	// next is when to look again; zero means not before something happens.
	next time.Time
}

// run looks at the leases that are restless. While too many are lost, those
// whose grace is over are held; once it is not too many any more, because most
// came back, the rest get a new grace.
func (s *sweep) run(leases []*lease, grace time.Duration, many bool, now time.Time) {
	for _, l := range leases {
		switch {
		case len(l.streams) > 0:
			s.confirm(l, now)
			continue
		case l.gone:
			continue
		case l.held && !many:
			l.held, l.lost = false, now
			s.freed = append(s.freed, l.id)
		}
		over := l.lost.Add(grace)
		switch {
		case l.held:
		case over.After(now):
			s.wake(over)
		case many:
			l.held = true
			s.held = append(s.held, l.id)
		default:
			l.expire()
			s.gone = append(s.gone, l.id)
		}
	}
}

// confirm forgets an unhealthy report from before a reconnect that the agent
// did not repeat: it may not probe any more.
func (s *sweep) confirm(l *lease, now time.Time) {
	switch {
	case l.confirmBy.IsZero():
	case l.confirmBy.After(now):
		s.wake(l.confirmBy)
	default:
		l.confirmBy, l.said, l.reason = time.Time{}, mesh.HealthUnknown, ""
	}
}

func (s *sweep) wake(at time.Time) {
	if s.next.IsZero() || at.Before(s.next) {
		s.next = at
	}
}
