package files

import (
	"cmp"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/lastgood"
)

// The status is the same for all sources of texts.
type (
	// Status is the state of a source; immutable.
	Status = lastgood.Status
	// State says how much of a source can be read.
	State = lastgood.State
	// RootStatus is the state of one directory, or of the file of mesh settings.
	RootStatus = lastgood.RootStatus
	// Counters only grow.
	Counters = lastgood.Counters
)

// The states of a source.
const (
	Starting    = lastgood.Starting
	OK          = lastgood.OK
	Partial     = lastgood.Partial
	Unavailable = lastgood.Unavailable
)

// Status is the present state of the source. It may be called from any
// goroutine.
func (s *Source) Status() *Status { return s.status.Load() }

// Unsaved says why the state directory does not have what is in force, or is empty.
func (s *Source) Unsaved() string { return s.Status().Unsaved }

// publish makes a new status.
func (s *Source) publish(now time.Time) {
	t, was := s.tree, s.Status()
	st := &Status{
		Source: s.cfg.Name, State: OK, Since: was.Since, Delivered: s.last != nil, Files: len(t.files),
		Objects: s.made.Objects, Kept: s.made.Kept, Counters: t.counts,
	}
	partial := ""
	for _, r := range t.roots {
		rs := RootStatus{Path: r.Path, Available: r.ok, Since: r.since, Files: r.files}
		if r.err != nil {
			rs.Reason = r.err.Error()
			st.State, st.Reason = Unavailable, r.Path+": "+rs.Reason
		}
		for path, err := range r.seen.unreadable {
			partial = max(partial, path+": "+err.Error())
		}
		st.Roots = append(st.Roots, rs)
	}
	for path, err := range t.unread {
		partial = max(partial, path+": "+err.Error())
	}
	switch {
	case st.State == OK && partial != "":
		st.State, st.Reason = Partial, partial
	case st.State == OK && !st.Delivered:
		st.State, st.Reason = Starting, cmp.Or(t.uncertain(), "not everything has been read yet")
	}
	s.releasable.Store(t.canRelease())
	if st.State != was.State || st.Since.IsZero() {
		st.Since = now
	}
	st.Faults = s.made.Faults
	if more := slices.Concat(t.faults(now), s.storeFaults); len(more) > 0 {
		st.Faults = slices.Concat(st.Faults, more)
		slices.SortStableFunc(st.Faults, lastgood.CompareFaults)
	}
	st.Unwatched = s.unwatched()
	st.Counters.StateErrors, st.Unsaved = s.persister.Trouble()
	s.status.Store(st)
}

// unwatched says why there are no events, or is empty; it logs changes of that.
func (s *Source) unwatched() string {
	reason := ""
	switch err := s.watchDown.Load(); {
	case err != nil:
		reason = (*err).Error()
	case s.tree.watchErr != nil:
		reason = s.tree.watchErr.Error()
	}
	if reason != s.loggedUnwatched {
		if reason != "" {
			s.log.Error("file watch lost, scanning every --scan-interval", "err", reason, "interval", s.cfg.ScanInterval.String())
		} else {
			s.log.Info("file watch restored")
		}
		s.loggedUnwatched = reason
	}
	return reason
}
