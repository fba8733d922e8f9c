package keeper

import (
	"fmt"
	"maps"
	"time"

	"github.com/fairlead/fairlead/agent/capture"
)

// Status is what a keeper knows at one moment.
type Status struct {
	// Mode is that of the confirmed settings; empty if nothing is confirmed.
	Mode capture.Mode `json:"mode,omitempty"`
	// Since is when the keeper loaded the table, by the wall clock; the zero value if nothing is
	// confirmed.
	Since time.Time `json:"since,omitzero"`
	// Kept is whether the kernel had the confirmed table at the last look.
	Kept bool `json:"kept"`
	// Pending is whether another table was applied and is not confirmed yet: it is left alone
	// until its time is over.
	Pending bool `json:"pending,omitempty"`
	// Mended counts what was put back, by what it was: table or routes.
	Mended map[string]uint64 `json:"mended,omitempty"`
	// LastMended is when that was last, by the wall clock, LastWhat what it was, and LastBy the
	// program that had changed tables, if the kernel said so.
	LastMended time.Time `json:"last_mended,omitzero"`
	LastWhat   string    `json:"last_what,omitempty"`
	LastBy     string    `json:"last_by,omitempty"`
	// Envoys are, in open mode, the workloads by name, and whether their Envoys are reported as
	// alive: connections of the others go directly.
	Envoys map[string]bool `json:"envoys,omitempty"`
	// DNS are the workloads whose DNS queries are captured, by name, and whether their agents are
	// reported to answer: queries of the others go directly.
	DNS map[string]bool `json:"dns,omitempty"`
	// Beats count how often the kernel was told to go on capturing what is reported as alive, and
	// FailedBeats how often that failed.
	Beats       uint64 `json:"beats,omitempty"`
	FailedBeats uint64 `json:"failed_beats,omitempty"`
	// Counts are connections by counter of the table, as the kernel has them now; nil if there is none.
	Counts map[string]uint64 `json:"counts,omitempty"`
	// Fight says that another program changes the table again and again; empty if none does.
	Fight string `json:"fight,omitempty"`
	// Problem is why capture is not as declared, or empty.
	Problem string `json:"problem,omitempty"`

	routesLooked time.Time
	mendedAt     time.Time
}

// nothing is what is left of a status where nothing is confirmed.
func (s *Status) nothing() {
	s.Mode, s.Since, s.Kept, s.Pending, s.Fight = "", time.Time{}, false, false, ""
}

func (s *Status) loaded(m capture.Mode, now time.Time) {
	s.Mode, s.Since, s.Kept, s.Pending = m, now, true, false
}

func (s *Status) mended(what, by string, mends int, now time.Time) {
	if s.Mended == nil {
		s.Mended = map[string]uint64{}
	}
	s.Mended[what]++
	s.LastMended, s.LastWhat, s.LastBy, s.mendedAt = now, what, by, now
	if mends >= fight {
		s.Fight = fmt.Sprintf("another program changes the table or its routes again and again, %d times by now", mends)
		if by != "" {
			s.Fight += ", the last time " + by
		}
		s.Fight += ": find it and stop it, such as a reload of nftables.service in a loop"
	}
}

// Status is the current state of the keeper.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.status
	s.Mended = maps.Clone(s.Mended)
	s.Envoys = k.reportedLocked(func(w *capture.Workload) uint16 { return w.OutboundPort })
	s.DNS = k.reportedLocked(func(w *capture.Workload) uint16 { return w.DNSPort })
	if s.Fight != "" && time.Since(s.mendedAt) > peace {
		s.Fight = ""
	}
	return s
}

// NotReady says what the start waits for; empty means that the confirmed table is loaded, or
// that there is none.
func (k *Keeper) NotReady() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.looked {
		return []string{"the table was not loaded yet"}
	}
	return nil
}

func (k *Keeper) setStatus(change func(*Status)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.status)
}

func (k *Keeper) setLooked() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.looked = true
}
