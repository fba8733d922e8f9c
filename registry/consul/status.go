package consul

import (
	"time"

	"github.com/fairlead/fairlead/registry/consul/mapping"
)

// State says how much of a datacenter can be read.
type State string

// The states of a source.
const (
	// Starting: not everything has been read yet.
	Starting State = "starting"
	// Live: the picture is Consul's, but for what Denied names.
	Live State = "live"
	// Stale: Consul cannot be read; the last picture stands.
	Stale State = "stale"
)

// Status is what a source tells people; immutable.
type Status struct {
	Source     string `json:"source"`
	Datacenter string `json:"datacenter"`
	Address    string `json:"address"`
	State      State  `json:"state"`
	// Reason says what is wrong; empty while State is Live.
	Reason string `json:"reason,omitempty"`
	// Since is when State became what it is.
	Since time.Time `json:"since"`
	// Read is when the picture was last known to be Consul's. Its age is that of
	// the picture.
	Read time.Time `json:"read,omitzero"`
	// FromDisk says that the picture is the stored one still.
	FromDisk bool `json:"from_disk,omitempty"`
	// Delivered says that a whole picture has been given to the registry.
	Delivered bool `json:"delivered"`
	// Unsaved says why the picture is not on disk, StateFault what was wrong with
	// the stored one at the start.
	Unsaved    string `json:"unsaved,omitempty"`
	StateFault string `json:"state_fault,omitempty"`

	Services  int `json:"services"`
	Instances int `json:"instances"`
	// Notes are what the mapping left out, the first hundred of NoteCount.
	Notes     []mapping.Note `json:"notes,omitempty"`
	NoteCount int            `json:"note_count"`
	// Denied are the rules that the token lacks, sorted, the first hundred of
	// them.
	Denied []string `json:"denied,omitempty"`
	// Mode says how changes are found.
	Mode string `json:"mode"`
	// Watches are the questions that wait at Consul, Connections what carries
	// them.
	Watches     int `json:"watches"`
	Connections int `json:"connections"`

	Counters
}

// Counters only grow.
type Counters struct {
	// Reads are whole answers, Sweeps looks at all services, Fragments those
	// that differed from the one before.
	Reads, Sweeps, Fragments uint64
	// Throttled and Failed count questions that got no answer, Resets indexes
	// that went backwards.
	Throttled, Failed, Resets uint64
}
