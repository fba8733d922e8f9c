package jwks

import (
	"fmt"
	"time"
)

// State says how a key set stands.
type State string

// The states of a key set.
const (
	// StatePending means that nothing was heard of the issuer yet; there are no keys.
	StatePending State = "pending"
	// StateCurrent means that the last attempt brought usable keys.
	StateCurrent State = "current"
	// StateStale means that the last attempt failed, and that earlier keys are in force.
	StateStale State = "stale"
	// StateNone means that there are no keys: tokens of the issuer are refused.
	StateNone State = "none"
)

// Status says how a key set stands, for people. It is immutable.
type Status struct {
	// URI is where the keys are wanted from or, with Discovery, the issuer; without user and
	// query.
	URI       string `json:"uri"`
	Discovery bool   `json:"discovery,omitempty"`
	// Private says that private addresses are allowed.
	Private bool `json:"private,omitempty"`
	// Issuers are those of the tokens, the first few.
	Issuers []string `json:"issuers,omitempty"`
	// Owners are who wants the keys, the first few.
	Owners []string `json:"owners,omitempty"`
	State  State    `json:"state"`
	// From is where the keys in force are from: a URI without user and query, or a file.
	From string `json:"from,omitempty"`
	Keys []Key  `json:"keys,omitempty"`
	// File says that the keys are read from a file, which is never away for a moment only.
	File bool `json:"file,omitempty"`
	// Unusable are keys of the last set that were left out, the first few.
	Unusable []Unusable `json:"unusable,omitempty"`
	// Confirmed is when the issuer published the keys in force last, by the wall clock then;
	// zero means never.
	Confirmed time.Time `json:"confirmed,omitzero"`
	// Age is how long ago that is. A clock that is set does not change it while the server
	// runs.
	Age time.Duration `json:"age,omitempty"`
	// Waiting is how long the key set has been wanted without an answer, of a pending one.
	Waiting time.Duration `json:"waiting,omitempty"`
	// Attempted is when the last attempt ended, by the wall clock then; zero means never.
	Attempted time.Time `json:"attempted,omitzero"`
	// Err says why the last attempt failed; empty means it did not.
	Err string `json:"err,omitempty"`

	good, since time.Time // with the monotonic clock
}

// Status is how all accepted key sets stand, in an order that stays, and how many sources are
// not followed because there are too many.
func (s *Store) Status() (list []Status, over int) {
	f := s.followed.Load()
	list = make([]Status, 0, len(f.order))
	for _, e := range f.order {
		list = append(list, e.current())
	}
	return list, len(f.over)
}

// StatusOf is how the key set of a source stands, for messages about the object that wants it.
func (s *Store) StatusOf(source Source) Status {
	f := s.followed.Load()
	l := source.location()
	if e := f.byLocation[l]; e != nil {
		return e.current()
	}
	st := Status{URI: shortURI(l.uri), Discovery: l.discovery, Private: l.private, State: StatePending}
	if _, ok := f.over[l]; ok {
		st.State = StateNone
		st.Err = fmt.Sprintf("more key sets are wanted than the %d that are followed", s.cfg.MaxSources)
	}
	return st
}

// Unsaved says why the disk does not have the keys in force; empty means that it does.
func (s *Store) Unsaved() string { return s.saver.problem() }

func (e *entry) current() Status {
	st := *e.status.Load()
	if !st.since.IsZero() {
		st.Waiting = time.Since(st.since).Round(time.Second)
	}
	if !st.good.IsZero() {
		st.Age = time.Since(st.good).Round(time.Second)
	}
	return st
}
