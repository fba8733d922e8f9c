package agents

import (
	"context"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Store keeps across restarts who is out.
type Store interface {
	// Load returns what was saved last, nothing if nothing was.
	Load() ([]mesh.HealthReport, error)
	// Save is called by one goroutine at a time.
	Save(out []mesh.HealthReport) error
}

// saveApart is the least time between two saves.
const saveApart = 200 * time.Millisecond

// restore takes out who was out before the restart, until an agent says
// otherwise: agents come back one after the other, and what is dead must not be
// tried again meanwhile.
func (s *Source) restore(now time.Time) {
	if s.store == nil {
		return
	}
	out, err := s.store.Load()
	if err != nil {
		s.log.Warn("who was out is not known any more, all workloads are in until agents report", "err", err)
		return
	}
	for _, r := range out {
		if r.Health != mesh.Unhealthy {
			continue
		}
		l := s.leaseOf(id{r.ServiceAccount, r.Address})
		if l == nil {
			return
		}
		l.gone, l.lost = true, now
		if r.Reason != goneReason {
			l.said, l.reason = mesh.Unhealthy, bounded(r.Reason)
		}
	}
}

// outOf lists who is out, as it is saved.
func outOf(f *mesh.Fragment) []mesh.HealthReport {
	var out []mesh.HealthReport
	for _, r := range f.Health {
		if r.Health == mesh.Unhealthy {
			out = append(out, r)
		}
	}
	return out
}

// keep saves what comes until the channel is closed. After the end of ctx it does
// not wait between two saves.
func (s *Source) keep(ctx context.Context, in <-chan []mesh.HealthReport) {
	failing := false
	for out := range in {
		err := s.store.Save(out)
		if err != nil && !failing {
			s.log.ErrorContext(ctx, "who is out is not saved: a restart would send requests there for a moment", "err", err)
		}
		failing = err != nil
		wait := time.NewTimer(saveApart)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
		}
	}
}
