package consul

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"time"

	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/consul/mapping"
)

// State says how much of a datacenter can be read.
type State string

// The states of a source.
const (
	// Starting: nothing has been delivered yet.
	Starting State = "starting"
	// Live: the catalog is up to date, but for what Denied names.
	Live State = "live"
	// Stale: not everything can be read; the last known state stays.
	Stale State = "stale"
)

// Values of Status.Mode.
const (
	ModeWatches = "a watch for each service (HTTP/2)"
	ModeTables  = "table watches and sweeps"
	ModeBoth    = "a watch for each service (HTTP/2); table watches and sweeps for those beyond what the server carries"
)

const reasonStarting = "not everything has been read yet"

// The queries that are followed.
const (
	queryNamesPath    = "catalog/services"
	queryDefaultsPath = "config/service-defaults"
	queryProxyPath    = "config/proxy-defaults"
	queryNodesPath    = "catalog/nodes"
	queryChecksPath   = "health/state/" // and the state
)

// listMax bounds the lists of a Status.
const listMax = 100

// Status is the state of a source, for people; immutable.
type Status struct {
	Source     string `json:"source"`
	Datacenter string `json:"datacenter,omitempty"`
	Address    string `json:"address"`
	State      State  `json:"state"`
	// Reason says what is wrong; empty while State is Live.
	Reason string `json:"reason,omitempty"`
	// Since is when State became what it is.
	Since time.Time `json:"since"`
	// Read is when the catalog was last known to be up to date.
	Read time.Time `json:"read,omitzero"`
	// FromDisk says that the stored catalog is still in use.
	FromDisk bool `json:"from_disk,omitempty"`
	// Delivered says that a whole catalog has been given to the registry.
	Delivered bool `json:"delivered"`
	// Unsaved says why the catalog is not on disk, StateFault what was wrong with
	// the stored one at the start.
	Unsaved    string `json:"unsaved,omitempty"`
	StateFault string `json:"state_fault,omitempty"`

	Services  int `json:"services"`
	Instances int `json:"instances"`
	// Notes are what the mapping left out, the first hundred of NoteCount.
	Notes     []mapping.Note `json:"notes,omitempty"`
	NoteCount int            `json:"note_count"`
	// Denied are the rules that the token lacks, or seems to lack, sorted, the
	// first hundred of DeniedCount. What was seen before stays.
	Denied      []string `json:"denied,omitempty"`
	DeniedCount int      `json:"denied_count,omitempty"`
	// Hidden says that Consul leaves out of its list what the token may not see.
	Hidden bool `json:"hidden,omitempty"`
	// Unreadable are services whose answers cannot be used, and why; the first
	// hundred of UnreadableCount.
	Unreadable      []string `json:"unreadable,omitempty"`
	UnreadableCount int      `json:"unreadable_count,omitempty"`
	// Mode says how changes are found.
	Mode string `json:"mode"`
	// Watches are the queries that wait at Consul, Connections what carries
	// them.
	Watches     int `json:"watches"`
	Connections int `json:"connections"`

	Counters
}

// Counters only grow.
type Counters struct {
	// Reads are whole answers about services, Sweeps looks at the indexes of all,
	// Fragments those that differed from the one before.
	Reads     uint64 `json:"reads"`
	Sweeps    uint64 `json:"sweeps"`
	Fragments uint64 `json:"fragments"`
	// Throttled and Failed count queries that got no answer, Resets indexes
	// that went backwards, Restores snapshots that Consul restored, Renewed the times when
	// everything was restarted.
	Throttled uint64 `json:"throttled"`
	Failed    uint64 `json:"failed"`
	Resets    uint64 `json:"resets"`
	Restores  uint64 `json:"restores"`
	Renewed   uint64 `json:"renewed"`
}

func namesOf(l listing) iter.Seq[string] { return maps.Keys(l) }

// Unsaved says why the state directory does not have what is in force, or is empty.
func (s *Source) Unsaved() string { return s.Status().Unsaved }

// publishStatus updates the status.
func (l *loop) publishStatus(now time.Time) {
	l.statusAt = now
	was, stats := l.s.Status(), l.s.client.Stats()
	st := &Status{
		Source: was.Source, Datacenter: was.Datacenter, Address: was.Address, State: Live, Since: was.Since,
		Delivered: l.delivered, StateFault: l.stateFault, Hidden: l.hidden, Instances: l.instances,
		Watches: stats.Followers, Connections: stats.Connections,
		Counters: Counters{
			Reads: l.s.reads.Load(), Sweeps: l.s.sweeps.Load(), Fragments: l.s.fragments.Load(),
			Throttled: stats.Throttled, Failed: stats.Failed, Resets: stats.Resets, Restores: stats.Restores, Renewed: stats.Restarts,
		},
	}
	switch {
	case l.watches > 0 && l.watchingTables:
		st.Mode = ModeBoth
	case l.watches > 0 || !l.watchingTables && l.s.client.HTTP2():
		st.Mode = ModeWatches
	default:
		st.Mode = ModeTables
	}
	if l.live {
		l.fromDisk = false
		if !stats.Down {
			l.seenAt = now
		}
	}
	st.Read, st.FromDisk = l.seenAt, l.fromDisk
	l.setState(st, stats.Down)
	if st.State != was.State {
		st.Since = now
	}
	l.describeServices(st)
	if l.s.stateWriter != nil {
		_, st.Unsaved = l.s.stateWriter.Trouble()
	}
	l.s.status.Store(st)
}

// setState sets the state and its reason.
func (l *loop) setState(st *Status, down bool) {
	err := cmp.Or(l.fault(), l.errNothingReadable())
	switch {
	case l.live && !down:
		return
	case !l.delivered:
		st.State, st.Reason = Starting, reasonStarting
	case l.liveEver && err == nil && !down:
		st.State, st.Reason = Stale, fmt.Sprintf("%d services are being read again", len(l.stale)+len(l.unconfirmed))
	default:
		st.State, st.Reason = Stale, reasonStarting
	}
	switch {
	case err != nil:
		st.Reason = err.Error()
	case down:
		st.Reason = client.ErrUnavailable.Error()
	}
}
