package persist

import (
	"sync/atomic"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Decision is what the guard has decided last about a source's fragments.
type Decision struct {
	last    atomic.Pointer[decided] // or nil
	changed chan struct{}
}

// decided is a fragment and how many of its removals are held.
type decided struct {
	fragment *mesh.Fragment
	held     int
}

// NewDecision returns a Decision without a fragment.
func NewDecision() *Decision { return &Decision{changed: make(chan struct{}, 1)} }

// Decided records that the guard has decided about a fragment, and how many of its removals it
// holds.
func (v *Decision) Decided(fragment *mesh.Fragment, held int) {
	v.last.Store(&decided{fragment, held})
	select {
	case v.changed <- struct{}{}:
	default:
	}
}

// Changed signals that the guard has decided again.
func (v *Decision) Changed() <-chan struct{} { return v.changed }

// Last is the fragment that was decided last, or nil, and how many of its removals are held.
func (v *Decision) Last() (fragment *mesh.Fragment, held int) {
	if st := v.last.Load(); st != nil {
		return st.fragment, st.held
	}
	return nil, 0
}
