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
	// Partial: a directory, file or value below a root cannot be read; what it
	// gave stands.
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
	// Read is when the source was last known to be as it is told here, where it is
	// reached over a network; what is in force may be as old as that. Else zero.
	Read time.Time `json:"read,omitzero"`
	// FromDisk says that what is in force is what the state directory had.
	FromDisk bool `json:"from_disk,omitempty"`
	// Delivered says that a whole fragment has been made, of files or of the
	// state directory.
	Delivered bool `json:"delivered"`
	// Unwatched says why changes are found by scanning alone; empty where they
	// are told by events.
	Unwatched string `json:"unwatched,omitempty"`
	// Unsaved says why the state directory does not have what is in force.
	Unsaved string       `json:"unsaved,omitempty"`
	Roots   []RootStatus `json:"roots"`
	// Files is how many texts are believed, of directories or of keys.
	Files int `json:"files"`
	// Ignored is how many keys are below the prefix and no manifests.
	Ignored int `json:"ignored,omitempty"`
	Objects int `json:"objects"`
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
	// Events are what told of a change, Overflows how often such were lost, and
	// Scans readings of everything.
	Events, Overflows, Scans uint64
	// Reads are texts that were read, Decodes those of them whose content was
	// another, and Objects what these held.
	Reads, Decodes, Objects uint64
	// Fragments are those that differed from the one before.
	Fragments   uint64
	StateErrors uint64
}
