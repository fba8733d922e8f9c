package files

import (
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/manifest"
)

// State says how much of a source can be read.
type State string

// The states of a source.
const (
	// Starting: nothing has been delivered yet.
	Starting State = "starting"
	// OK: everything was read at the last look.
	OK State = "ok"
	// Partial: a directory or file below a root cannot be read; what it gave
	// stands.
	Partial State = "partial"
	// Unavailable: a root cannot be read; all it gave stands.
	Unavailable State = "unavailable"
)

// Status is what a source tells people; immutable.
type Status struct {
	Source string `json:"source"`
	State  State  `json:"state"`
	// Reason says what is wrong; empty while State is OK.
	Reason string `json:"reason,omitempty"`
	// Since is when State became what it is.
	Since time.Time `json:"since"`
	// Delivered says that a whole fragment has been made, of files or of the
	// state directory.
	Delivered bool `json:"delivered"`
	// Unwatched says why changes are found by scanning alone; empty where they
	// are told by events.
	Unwatched string `json:"unwatched,omitempty"`
	// Unsaved says why the state directory does not have what is in force.
	Unsaved string       `json:"unsaved,omitempty"`
	Roots   []RootStatus `json:"roots"`
	Files   int          `json:"files"`
	Objects int          `json:"objects"`
	// Faults are sorted by position.
	Faults []manifest.Fault `json:"faults,omitempty"`
	// Kept are the objects whose last good version stands in for a broken one.
	Kept     []Kept   `json:"kept,omitempty"`
	Counters Counters `json:"counters"`
}

// RootStatus is the state of one directory, or of the file of mesh settings.
type RootStatus struct {
	Path      string    `json:"path"`
	Available bool      `json:"available"`
	Reason    string    `json:"reason,omitempty"`
	Since     time.Time `json:"since"`
	Files     int       `json:"files"`
}

// Counters only grow.
type Counters struct {
	// Events of the file system, and scans of everything.
	Events, Overflows, Scans uint64
	// Reads are files that were read, Decodes those of them whose content was
	// another, and Objects what these held.
	Reads, Decodes, Objects uint64
	// Fragments are those that differed from the one before.
	Fragments   uint64
	StateErrors uint64
}

// Status is the present state of the source. It may be called from any
// goroutine.
func (s *Source) Status() *Status { return s.status.Load() }

// publish makes the status anew.
func (s *Source) publish(now time.Time) {
	t, was := s.tree, s.Status()
	st := &Status{
		Source: s.cfg.Name, State: OK, Since: was.Since, Delivered: s.last != nil, Files: len(t.files),
		Objects: s.made.objects, Kept: s.made.kept, Counters: t.counts,
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
		st.State, st.Reason = Starting, "not everything has been read yet"
	}
	if st.State != was.State {
		st.Since = now
	}
	st.Faults = s.made.faults
	if more := slices.Concat(t.faults(now), s.storeFaults); len(more) > 0 {
		st.Faults = slices.Concat(st.Faults, more)
		slices.SortStableFunc(st.Faults, compareFaults)
	}
	st.Unwatched = s.unwatched()
	if s.keeper != nil {
		st.Counters.StateErrors, st.Unsaved = s.keeper.trouble()
	}
	s.status.Store(st)
}

// unwatched says why events are missing, or is empty; it logs when that
// changes.
func (s *Source) unwatched() string {
	reason := ""
	switch err := s.watchDown.Load(); {
	case err != nil:
		reason = (*err).Error()
	case s.tree.watchErr != nil:
		reason = s.tree.watchErr.Error()
	}
	if reason != s.toldUnwatched {
		if reason != "" {
			s.log.Error("changes are found by scanning only", "err", reason, "interval", s.cfg.ScanInterval.String())
		} else {
			s.log.Info("changes are told by events again")
		}
		s.toldUnwatched = reason
	}
	return reason
}
