package keep

import (
	"sync/atomic"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Verdict is what the receiver said last of a source's fragments.
type Verdict struct {
	last atomic.Pointer[settlement] // or nil
	told chan struct{}
}

// settlement is what became of a fragment.
type settlement struct {
	fragment *mesh.Fragment
	held     int
}

// NewVerdict is one before anything was said.
func NewVerdict() *Verdict { return &Verdict{told: make(chan struct{}, 1)} }

// Settled says that the receiver has judged a fragment, and how many of its
// removals it holds back.
func (v *Verdict) Settled(fragment *mesh.Fragment, held int) {
	v.last.Store(&settlement{fragment, held})
	select {
	case v.told <- struct{}{}:
	default:
	}
}

// Told rings when the receiver has said something.
func (v *Verdict) Told() <-chan struct{} { return v.told }

// Last is the fragment that was judged last, or nil, and how many of its removals
// are held back.
func (v *Verdict) Last() (fragment *mesh.Fragment, held int) {
	if st := v.last.Load(); st != nil {
		return st.fragment, st.held
	}
	return nil, 0
}
