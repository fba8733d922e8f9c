package sourcetest

import (
	"cmp"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Place is what a source reads, and how a test changes it. All funcs are called
// from one goroutine, that of the test; they may fail it.
type Place struct {
	// New makes a source of the place, which the contract runs, once. Each one is
	// new to the place: what another one stored is not its.
	New func(tb testing.TB) registry.Source
	// Put makes the objects of the place exactly those, by name, each with that
	// content. What is as before must not be touched.
	Put func(tb testing.TB, objects map[string]string)
	// Read finds in a fragment what Put has put there. The rule that a fragment
	// is whole is judged by it.
	Read func(f *mesh.Fragment) map[string]string
	// Away makes the place one that cannot be read, Back makes it one that can,
	// with what is in it. Nil where nothing can be away.
	Away, Back func(tb testing.TB)
	// Again is how soon the source reads, and so sends, the whole anew though
	// nothing changed; 0 where it has no need to, as nothing of it is ever held
	// back for a second reading.
	Again time.Duration
	// Within is how long a change may take until it is sent; 0 means 10 s.
	Within time.Duration
	// Quiet is how long nothing is to be heard of a place that is away; 0 means a
	// second.
	Quiet time.Duration
}

func (p *Place) within() time.Duration { return cmp.Or(p.Within, 10*time.Second) }

func (p *Place) quiet() time.Duration { return cmp.Or(p.Quiet, time.Second) }
