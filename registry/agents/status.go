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
)

// Status is the state of a Source for people and metrics.
type Status struct {
	// Connected, Lost, Held and Gone count workloads by State, Unhealthy those
	// that are out for whatever reason.
	Connected, Lost, Held, Gone, Unhealthy int
	// Refused counts streams for which there was no room, Ignored reports of
	// streams that are not open.
	Refused, Ignored uint64
	// Workloads are those that are not connected or not well, the first hundred
	// in the order of account and address.
	Workloads []WorkloadStatus
}

// WorkloadStatus is what is known of one workload.
type WorkloadStatus struct {
	ServiceAccount mesh.ServiceAccount
	Address        string
	State          State
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
	default:
		return Lost
	}
}

// Status is the present state.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Refused: s.refused, Ignored: s.ignored}
	for _, l := range s.sorted {
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
		}
		health, reason := l.health()
		if health == mesh.Unhealthy {
			st.Unhealthy++
		}
		if (state != Connected || health == mesh.Unhealthy) && len(st.Workloads) < listedWorkloads {
			st.Workloads = append(st.Workloads, WorkloadStatus{
				ServiceAccount: l.id.account, Address: l.id.address, State: state, Since: l.lost, Health: health, Reason: reason,
			})
		}
	}
	return st
}
