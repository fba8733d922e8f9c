package lastgood

import (
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
	// Partial: a directory, file or value below a root cannot be read; its objects stay in
	// force.
	Partial State = "partial"
	// Unavailable: a root cannot be read; its objects stay in force.
	Unavailable State = "unavailable"
)

// Status is the state of a source; immutable.
type Status struct {
	Source string `json:"source"`
	State  State  `json:"state"`
	// Reason says what is wrong; empty while State is OK.
	Reason string `json:"reason,omitempty"`
	// Since is when State changed.
	Since time.Time `json:"since"`
	// Read is when the source was last confirmed, if it is reached over a network: what is in
	// force may be as old as that. Else zero.
	Read time.Time `json:"read,omitzero"`
	// FromDisk means that what is in force comes from the state directory.
	FromDisk bool `json:"from_disk,omitempty"`
	// Delivered means that a complete fragment was sent, from the source or the state
	// directory.
	Delivered bool `json:"delivered"`
	// Unwatched says why changes are found only by scanning; empty if there are events.
	Unwatched string `json:"unwatched,omitempty"`
	// Unsaved says why the state directory does not have what is in force.
	Unsaved string       `json:"unsaved,omitempty"`
	Roots   []RootStatus `json:"roots"`
	// Files is the number of accepted texts.
	Files int `json:"files"`
	// Ignored is the number of keys below the prefix that are not manifests.
	Ignored int `json:"ignored,omitempty"`
	Objects int `json:"objects"`
	// Faults are sorted by position.
	Faults []manifest.Fault `json:"faults,omitempty"`
	// MoreErrors is how many errors are not among Faults, because there are too many.
	MoreErrors int `json:"more_errors,omitempty"`
	// Kept are the objects whose last good version replaces a broken one.
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
	// Events are notifications of changes, Overflows how often some were lost, and Scans
	// complete readings.
	Events, Overflows, Scans uint64
	// Reads are texts that were read, Decodes those whose content had changed, and Objects the
	// objects in these.
	Reads, Decodes, Objects uint64
	// Fragments are those that differed from the one before.
	Fragments   uint64
	StateErrors uint64
}
