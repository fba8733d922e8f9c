package xds

import (
	"slices"
	"sync"
	"time"

	"github.com/fairlead/fairlead/xds/view"
)

// FindingStatus is a fault of the mesh that makes requests of connected proxies fail.
type FindingStatus struct {
	view.Finding
	// Since is when a connected proxy had it first, without a pause since then.
	Since time.Time
	// Proxies is how many connected proxies have it.
	Proxies int
}

// findingTimes is since when some connected proxy has a finding. [Server.Run] looks every second: what
// begins and ends in between is no finding.
type findingTimes struct {
	mu    sync.Mutex // guards since
	since map[view.Finding]time.Time
}

// countFindings counts the connected proxies that have a finding. Proxies share their list of findings,
// so that it is gone through once. A proxy that does not get its current configuration is left out: that
// is a condition of its own.
func (s *Server) countFindings() (count map[view.Finding]int, more int) {
	sets := map[*view.Findings]int{}
	for _, c := range s.connections() {
		if o := c.current.Load(); o != nil && o.View != nil && o.View.Findings != nil && !o.gone && o.fault == "" {
			sets[o.View.Findings]++
		}
	}
	count = map[view.Finding]int{}
	for set, proxies := range sets {
		more = max(more, set.More)
		for _, f := range set.List {
			count[f] += proxies
		}
	}
	return count, more
}

// observeFindings notes which findings begin and end. While sources are missing there are none: what
// seems to be missing may be theirs.
func (s *Server) observeFindings(now time.Time) {
	var count map[view.Finding]int
	if snap := s.cfg.Snapshots.Snapshot(); snap != nil && !snap.Incomplete {
		count, _ = s.countFindings()
	}
	t := &s.findings
	t.mu.Lock()
	defer t.mu.Unlock()
	for f := range t.since {
		if count[f] == 0 {
			delete(t.since, f)
		}
	}
	for f := range count {
		if _, known := t.since[f]; !known {
			if t.since == nil {
				t.since = map[view.Finding]time.Time{}
			}
			t.since[f] = now
		}
	}
}

// Findings are the faults of the mesh that connected proxies have, sorted, and how many a proxy has at
// most besides these.
func (s *Server) Findings() (list []FindingStatus, more int) {
	count, more := s.countFindings()
	t := &s.findings
	t.mu.Lock()
	defer t.mu.Unlock()
	for f, n := range count {
		if since, ok := t.since[f]; ok {
			list = append(list, FindingStatus{f, since, n})
		}
	}
	slices.SortFunc(list, func(a, b FindingStatus) int { return a.Compare(b.Finding) })
	return list, more
}
