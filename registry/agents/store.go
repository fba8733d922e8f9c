package agents

import (
	"log/slog"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Store saves across restarts which workloads are out or silent.
type Store interface {
	// Load returns what was saved last, nothing if nothing was.
	Load() ([]mesh.HealthReport, error)
	// Save is called by one goroutine at a time.
	Save(out []mesh.HealthReport) error
}

const (
	// saveApart is the least time between two saves of who is newly out.
	saveApart = 200 * time.Millisecond
	// saveAgain is the time after a save that did not succeed.
	saveAgain = 5 * time.Second
)

// restore takes the workloads out that were out before the restart, until an agent reports
// otherwise: agents reconnect one after the other, and a dead workload must not get traffic
// meanwhile. Those that were silent are silent again.
func (s *Source) restore(now time.Time) {
	if s.store == nil {
		return
	}
	out, err := s.store.Load()
	if err != nil {
		s.log.Warn("reading outages.json failed; all workloads count as healthy until agents report", "err", err)
		return
	}
	for _, r := range out {
		if r.Reason == silentReason {
			r.Health = mesh.Silent
		}
		l := s.leaseFor(&r)
		if l == nil {
			return
		}
		l.awaited, l.lost, l.silent, l.left = false, now, r.Health == mesh.Silent, r.Health != mesh.Silent
		s.updateLease(l)
		s.restored = append(s.restored, &r)
	}
}

func idOf(r *mesh.HealthReport) id {
	return id{placement{r.ServiceAccount, r.Network, r.Address}, r.Workload}
}

// leaseFor is the lease of a report: that of the named workload, or the one that reports for
// all at its placement.
func (s *Source) leaseFor(r *mesh.HealthReport) *lease {
	if r.Workload == "" {
		for _, l := range s.at(idOf(r).placement) {
			if l.primary {
				return l
			}
		}
	}
	l := s.leaseOf(idOf(r))
	if l != nil {
		s.elect(l.id.placement)
	}
	return l
}

// downSaver decides when the list of workloads that are out or silent is saved. A workload that is in
// again is saved before it is sent: a restart must not take out a workload in use. A workload
// that is out may be saved a little later, together with others.
type downSaver struct {
	store   Store // or nil
	log     *slog.Logger
	saved   []*mesh.HealthReport // sorted
	last    time.Time            // of a save
	failing bool
	trouble string // why the last save failed, or empty
}

// before is called before a fragment is sent.
func (k *downSaver) before(out []*mesh.HealthReport, now time.Time) {
	if len(k.saved) == 0 {
		return
	}
	still := make(map[id]bool, len(out))
	for _, r := range out {
		still[idOf(r)] = true
	}
	back := func(r *mesh.HealthReport) bool { return !still[idOf(r)] }
	if slices.ContainsFunc(k.saved, back) {
		k.save(out, now)
	}
}

// after is called after a fragment was sent, and returns when to call it again; zero means not
// before something changes.
func (k *downSaver) after(out []*mesh.HealthReport, now time.Time) time.Time {
	if k.store == nil || slices.EqualFunc(out, k.saved, func(a, b *mesh.HealthReport) bool { return *a == *b }) {
		return time.Time{}
	}
	due := k.last.Add(saveApart)
	if k.failing {
		due = k.last.Add(saveAgain)
	}
	if now.Before(due) {
		return due
	}
	k.save(out, now)
	if k.failing {
		return now.Add(saveAgain)
	}
	return time.Time{}
}

func (k *downSaver) save(out []*mesh.HealthReport, now time.Time) {
	values := make([]mesh.HealthReport, 0, len(out))
	for _, r := range out {
		values = append(values, *r)
	}
	err := k.store.Save(values)
	if err != nil && !k.failing {
		k.log.Error("saving outages failed: after a restart unhealthy workloads may get requests", "err", err)
	}
	k.failing, k.last, k.trouble = err != nil, now, ""
	if err != nil {
		k.trouble = err.Error()
	}
	if err == nil {
		k.saved = out
	}
}
