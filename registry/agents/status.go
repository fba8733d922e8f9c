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
	// Silent: the grace is over. The workload is used only where no better one is left.
	Silent State = "silent"
	// Gone: not connected, and out: its last report was unhealthy, or a person took it out.
	Gone State = "gone"
	// Awaited: the host is on record, and has not been connected since the start.
	Awaited State = "awaited"
)

// Status is the state of a Source for people and metrics.
type Status struct {
	// Connected, Lost, Silent, Gone and Awaited count workloads by State, Unhealthy those
	// that are out for whatever reason.
	Connected, Lost, Silent, Gone, Awaited, Unhealthy int
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
	ServiceAccount   mesh.ServiceAccount
	Network, Address string
	Workload         string
	// Host is who claims the workload, or empty.
	Host  string
	State State
	// Since is when the stream was lost, or the server's start if that was before; zero while
	// connected.
	Since  time.Time
	Health mesh.Health
	Reason string
}

func (l *lease) state() State {
	switch {
	case len(l.streams) > 0:
		return Connected
	case l.gone():
		return Gone
	case l.silent:
		return Silent
	case l.awaited:
		return Awaited
	default:
		return Lost
	}
}

// status is what is known of the workload.
func (l *lease) status() WorkloadStatus {
	health, reason := l.health()
	return WorkloadStatus{
		ServiceAccount: l.id.account, Network: l.id.network, Address: l.id.address, Workload: l.id.workload, Host: l.host,
		State: l.state(), Since: l.lost, Health: health, Reason: reason,
	}
}

// Away are all workloads that a host claims and whose agent is not connected, in the order of
// account and address.
func (s *Source) Away() []WorkloadStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []WorkloadStatus
	for _, l := range s.sorted {
		if l.host != "" && len(l.streams) == 0 {
			out = append(out, l.status())
		}
	}
	return out
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
		case Silent:
			st.Silent++
		case Gone:
			st.Gone++
		case Awaited:
			st.Awaited++
		}
		health, _ := l.health()
		if health == mesh.Unhealthy {
			st.Unhealthy++
		}
		if (state != Connected && state != Awaited || health == mesh.Unhealthy) && len(st.Workloads) < listedWorkloads {
			st.Workloads = append(st.Workloads, l.status())
		}
	}
	return st
}
