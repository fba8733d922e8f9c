package agents

import (
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// State is what has become of a workload's agent.
type State string

// The states of an agent.
const (
	Connected State = "connected"
	// Lost: the stream ended less than the grace ago.
	Lost State = "lost"
	// Held: the grace is over, but too many were lost together.
	Held State = "held"
	// Gone: the grace is over, the workload is out.
	Gone State = "gone"
	// Awaited: the host is on record, and has not been connected yet.
	Awaited State = "awaited"
)

// Status is the state of a Source for people and metrics.
type Status struct {
	// Connected, Lost, Held, Gone and Awaited count workloads by State, Unhealthy those
	// that are out for whatever reason.
	Connected, Lost, Held, Gone, Awaited, Unhealthy int
	// Refused counts streams for which there was no room, Ignored reports of
	// streams that are not open.
	Refused, Ignored uint64
	// Proofs count the claims that bind by what proves them.
	Proofs map[mesh.Proof]int
	// Conflicts are hosts that claimed lately what is another's; Displaced and
	// Contested count the claims that were lost and refused since the start.
	Conflicts            []Conflict
	Displaced, Contested uint64
	// Workloads are those that are not connected or not well, the first hundred
	// in the order of account and address.
	Workloads []WorkloadStatus
}

// WorkloadStatus is what is known of one workload.
type WorkloadStatus struct {
	ServiceAccount mesh.ServiceAccount
	Address        string
	// Host is who claims the workload, or empty.
	Host  string
	State State
	// Since is when the stream was lost; zero while connected.
	Since  time.Time
	Health mesh.Health
	Reason string
}

func (l *lease) state() State {
	switch {
	case len(l.streams) > 0:
		return Connected
	case l.gone:
		return Gone
	case l.held:
		return Held
	case l.awaited:
		return Awaited
	default:
		return Lost
	}
}

// Status is the present state.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	st := Status{Refused: s.refused, Ignored: s.ignored, Proofs: map[mesh.Proof]int{}, Displaced: s.displaced, Contested: s.contested}
	for _, c := range s.conflicts.All() {
		if now.Sub(c.Last) < conflictFor {
			st.Conflicts = append(st.Conflicts, c)
		}
	}
	for _, l := range s.sorted {
		if s.bound(l, now) {
			st.Proofs[s.proven(l.claim)]++
		}
		state := l.state()
		switch state {
		case Connected:
			st.Connected++
		case Lost:
			st.Lost++
		case Held:
			st.Held++
		case Gone:
			st.Gone++
		case Awaited:
			st.Awaited++
		}
		health, reason := l.health()
		if health == mesh.Unhealthy {
			st.Unhealthy++
		}
		if (state != Connected && state != Awaited || health == mesh.Unhealthy) && len(st.Workloads) < listedWorkloads {
			st.Workloads = append(st.Workloads, WorkloadStatus{
				ServiceAccount: l.id.account, Address: l.id.address, Host: l.host, State: state, Since: l.lost, Health: health, Reason: reason,
			})
		}
	}
	return st
}
