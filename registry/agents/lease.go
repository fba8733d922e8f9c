package agents

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	// silentReason is the reason of a workload whose agent is silent. Earlier releases wrote it
	// into outages.json for those, too, and took them out.
	silentReason = "agent gone"
	// removedReason is that of one that a person has taken out.
	removedReason = "agent gone; taken out by an operator"
	// leftReason is that of one whose agent said before that the workload is not
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
	// silent says that the grace is over, removed that a person has taken the workload out.
	silent, removed bool
	// left says that the last report before the stream ended was unhealthy: that verdict
	// stands. confirmBy is until when it counts after the host is back, unless it
	// reports; or zero.
	left      bool
	confirmBy time.Time
	// leftDown says that this report was unhealthy only because Envoy was not running. One that is
	// live is the end of that, also on the next stream.
	leftDown bool
	// awaited means that no host has been connected since the server started, or since the
	// claim changed: the health is unknown, until Source.settleAt.
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
	return !l.silent && !l.gone() && !l.awaited
}

// gone reports whether a verdict keeps the workload out while its agent is away.
func (l *lease) gone() bool { return len(l.streams) == 0 && (l.left || l.removed) }

// remove takes the workload out until its agent returns.
func (l *lease) remove() { l.removed, l.silent, l.awaited = true, false, false }

// opened adds a stream. At the limit the oldest is removed.
func (l *lease) opened(a attached, limits limits, now time.Time) (forgotten uint64) {
	if len(l.streams) == limits.streams {
		forgotten = l.streams[0].stream
		l.streams = slices.Delete(l.streams, 0, 1)
	}
	if len(l.streams) == 0 && l.left {
		l.confirmBy = now.Add(confirmWithin)
	}
	l.streams = append(l.streams, a)
	l.lost, l.silent, l.removed, l.awaited = time.Time{}, false, false, false
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
	if a.down != was || l.leftDown && (state == "live" || state == "rejecting") {
		l.spoke(a)
	}
}

func (l *lease) spoke(a *attached) {
	a.spoken = true
	l.left, l.leftDown, l.confirmBy = false, false, time.Time{}
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

// probed is what the probe says by the newest stream that has reported.
func (l *lease) probed() mesh.Health {
	for _, a := range slices.Backward(l.streams) {
		if a.spoken {
			return a.probe
		}
	}
	return mesh.HealthUnknown
}

// closed records the end of a stream.
func (l *lease) closed(stream uint64, now time.Time) {
	at := l.at(stream)
	if at < 0 {
		return
	}
	health, reason := l.said()
	probe := l.probed()
	l.streams = slices.Delete(l.streams, at, at+1)
	if len(l.streams) > 0 {
		return
	}
	l.lost, l.confirmBy = now, time.Time{}
	if health == mesh.Unhealthy {
		l.leftDown = reason == downReason && probe != mesh.Unhealthy
	}
	l.left = l.left || health == mesh.Unhealthy
}

// health is what counts, and why.
func (l *lease) health() (mesh.Health, string) {
	switch {
	case l.left && len(l.streams) > 0:
		return mesh.Unhealthy, waitReason
	case l.left:
		return mesh.Unhealthy, leftReason
	case l.removed:
		return mesh.Unhealthy, removedReason
	case l.silent:
		return mesh.Silent, silentReason
	}
	health, reason := l.said()
	return health, reason
}

// confirmWithin is how long an agent has after its return to repeat that its workload is not
// well.
const confirmWithin = 10 * time.Second

// limits are the settings of a Source.
type limits struct {
	grace, settle time.Duration
	streams       int // of one workload
}
