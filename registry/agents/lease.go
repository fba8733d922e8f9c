package agents

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	// goneReason is the reason of a workload whose agent did not come back.
	goneReason = "agent gone"
	// leftReason is the same where the agent said before that the workload is not
	// well, and waitReason that of one that is back and has not said anything yet.
	downReason = "its Envoy is not running"
	leftReason = "agent gone; its last report was unhealthy"
	waitReason = "agent is back and has not reported yet; its last report was unhealthy"
)

// placement is the account and the address of a workload.
type placement struct {
	account          mesh.ServiceAccount
	network, address string
}

// location is the address of a workload, without its account.
type location struct{ network, address string }

// location is the same for all spellings of an address.
func (p placement) location() location {
	if a, err := netip.ParseAddr(p.address); err == nil {
		return location{p.network, a.Unmap().WithZone("").String()}
	}
	return location{p.network, p.address}
}

// id names a workload.
type id struct {
	placement
	workload string
}

func compareIDs(a, b id) int {
	return cmp.Or(cmp.Compare(a.account.Namespace, b.account.Namespace),
		cmp.Compare(a.account.Name, b.account.Name), cmp.Compare(a.address, b.address),
		cmp.Compare(a.network, b.network), cmp.Compare(a.workload, b.workload))
}

// attached is one open stream of a lease, and what it has said.
type attached struct {
	stream uint64
	// probe is what the agent's probe of the application says, and why.
	probe  mesh.Health
	reason string
	// down says that its Envoy was absent, and has not been live since.
	down   bool
	spoken bool
	// end ends the stream because the claim is another host's now; or nil.
	end func(reason string)
}

// lease is the state of one workload: the host that claims it, and the reports of that host's
// streams. A report ends with its stream.
type lease struct {
	id id
	claim
	// primary says that the reports of this lease are of all workloads in the place
	// that nobody else claims.
	primary bool
	// streams are open, in the order in which they were opened.
	streams []attached

	// lost is when the last stream ended; zero while there is one.
	lost time.Time
	// held says that too many were lost with it; gone that the grace is over.
	held, gone bool
	// left says that the last report before the silence was unhealthy: the workload
	// is not let in by silence. confirmBy is until when that counts after the host is
	// back, unless it reports; or zero.
	left      bool
	confirmBy time.Time
	// awaited means that no host has been connected since the server started, or since the
	// claim changed: the health is unknown.
	awaited bool

	// last is the last report that was sent to the registry; nil if the health is unknown.
	last *mesh.HealthReport
	// counted is the State under which the source counts it; forgotten means that the source
	// has removed it.
	counted   State
	forgotten bool
}

// about is the name of the workload in the reports of the lease.
func (l *lease) about() string {
	if l.primary {
		return ""
	}
	return l.id.workload
}

// reported reports whether the registry has this health.
func (l *lease) reported(health mesh.Health, reason string) bool {
	if l.last == nil {
		return health == mesh.HealthUnknown
	}
	return l.last.Health == health && l.last.Reason == reason && l.last.Workload == l.about()
}

// report is the report for the registry: the last one, if it is still right.
func (l *lease) report() *mesh.HealthReport {
	health, reason := l.health()
	switch {
	case l.forgotten || health == mesh.HealthUnknown:
		return nil
	case l.reported(health, reason):
		return l.last
	}
	return &mesh.HealthReport{
		ServiceAccount: l.id.account, Network: l.id.network, Address: l.id.address, Workload: l.about(),
		Health: health, Reason: reason, Own: true,
	}
}

// timed reports whether the lease changes with time.
func (l *lease) timed() bool {
	if len(l.streams) > 0 {
		return !l.confirmBy.IsZero()
	}
	return !l.gone && !l.awaited
}

// opened adds a stream. At the limit the oldest is removed.
func (l *lease) opened(a attached, limits limits, now time.Time) (forgotten uint64) {
	if len(l.streams) == limits.streams {
		forgotten = l.streams[0].stream
		l.streams = slices.Delete(l.streams, 0, 1)
	}
	if len(l.streams) == 0 && l.left {
		l.confirmBy = now.Add(limits.grace)
	}
	l.streams = append(l.streams, a)
	l.lost, l.held, l.gone, l.awaited = time.Time{}, false, false, false
	return forgotten
}

func (l *lease) at(stream uint64) int {
	return slices.IndexFunc(l.streams, func(a attached) bool { return a.stream == stream })
}

// reportProbe records the result of an agent's probe.
func (l *lease) reportProbe(a *attached, health mesh.Health, reason string) {
	a.probe, a.reason = health, reason
	l.spoke(a)
}

// reportEnvoy records the state of Envoy, as in decision 7.
func (l *lease) reportEnvoy(a *attached, state string) {
	was := a.down
	switch state {
	case "absent":
		a.down = true
	case "live", "rejecting":
		a.down = false
	default:
		// One that is starting and was gone has no listeners yet; one that an agent
		// has just taken over serves as before.
	}
	if a.down != was {
		l.spoke(a)
	}
}

func (l *lease) spoke(a *attached) {
	a.spoken = true
	l.left, l.confirmBy = false, time.Time{}
}

// health is the health of the workload by one stream: a workload whose Envoy is gone is
// unreachable, whatever its probe says.
func (a *attached) health() (mesh.Health, string) {
	if a.down {
		return mesh.Unhealthy, downReason
	}
	return a.probe, a.reason
}

// said is the report of the newest stream that has reported: a report ends with its stream.
func (l *lease) said() (mesh.Health, string) {
	for _, a := range slices.Backward(l.streams) {
		if a.spoken {
			return a.health()
		}
	}
	return mesh.HealthUnknown, ""
}

// closed records the end of a stream. A workload that was out gets no grace period.
func (l *lease) closed(stream uint64, now time.Time) {
	at := l.at(stream)
	if at < 0 {
		return
	}
	health, _ := l.said()
	l.streams = slices.Delete(l.streams, at, at+1)
	if len(l.streams) > 0 {
		return
	}
	l.lost, l.confirmBy = now, time.Time{}
	if l.left = l.left || health == mesh.Unhealthy; l.left {
		l.expire()
	}
}

// expire takes the workload out.
func (l *lease) expire() { l.gone, l.held = true, false }

// health is what counts, and why.
func (l *lease) health() (mesh.Health, string) {
	switch {
	case l.gone && l.left:
		return mesh.Unhealthy, leftReason
	case l.gone:
		return mesh.Unhealthy, goneReason
	case l.left && len(l.streams) > 0:
		return mesh.Unhealthy, waitReason
	}
	health, reason := l.said()
	return health, reason
}

// limits are the settings of a Source.
type limits struct {
	grace   time.Duration
	share   float64
	floor   int
	streams int // of one workload
}

// tooMany reports whether so many streams were lost that the cause is probably this server.
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

// run updates the timed leases. While too many streams are lost, leases whose grace is over
// are held; when it is not too many any more, because most came back, the rest get a new grace
// period.
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
