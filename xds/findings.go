package xds

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
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
	counted atomic.Pointer[countedFindings] // nil until they were counted

	mu    sync.Mutex // guards since
	since map[view.Finding]time.Time
}

// countedFindings are the findings of connected proxies, with how many have each. It is immutable.
type countedFindings struct {
	sets  map[*view.Findings]int
	count map[view.Finding]int
}

// countFindings counts the connected proxies that have a finding. Proxies share their list of findings,
// so that it is gone through once, and only if it or the number of its proxies is new. A proxy that does not
// get its current configuration is left out: that is a condition of its own.
func (s *Server) countFindings() map[view.Finding]int {
	sets := map[*view.Findings]int{}
	for _, c := range s.connections() {
		if o := c.current.Load(); o != nil && o.View != nil && o.View.Findings != nil && !o.gone && o.fault == "" {
			sets[o.View.Findings]++
		}
	}
	if last := s.findings.counted.Load(); last != nil && maps.Equal(last.sets, sets) {
		return last.count
	}
	count := map[view.Finding]int{}
	for set, proxies := range sets {
		for _, f := range set.List {
			count[f] += proxies
		}
	}
	s.findings.counted.Store(&countedFindings{sets, count})
	return count
}

// observeFindings notes which findings begin and end. While sources are missing there are none: what
// seems to be missing may be theirs.
func (s *Server) observeFindings(now time.Time) {
	var count map[view.Finding]int
	if snap := s.cfg.Snapshots.Snapshot(); snap != nil && !snap.Incomplete {
		count = s.countFindings()
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

// Findings are the faults of the mesh that connected proxies have, sorted.
func (s *Server) Findings() (list []FindingStatus) {
	count := s.countFindings()
	t := &s.findings
	t.mu.Lock()
	defer t.mu.Unlock()
	for f, n := range count {
		if since, ok := t.since[f]; ok {
			list = append(list, FindingStatus{f, since, n})
		}
	}
	slices.SortFunc(list, func(a, b FindingStatus) int { return a.Compare(b.Finding) })
	return list
}
