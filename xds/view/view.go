package view

import (
	"iter"
	"sync"

	"github.com/fairlead/fairlead/registry/mesh"
)

// View is what one proxy may see and must do.
type View struct {
	// Stack is all that the proxy's resources are made from: proxies whose stacks have
	// one hash are sent the same bytes.
	*Stack
	// Warnings are what a person should know of this view: what was left out,
	// and why. They are no part of its hash.
	Warnings []Warning

	mu sync.Mutex // guards all following fields
	// epoch, seq and proxy are what it was last seen to be right for, at and out
	// where that is. epoch is nil in a view that no Index has made.
	epoch *epoch
	seq   uint64
	proxy *Proxy
	at    place
	out   *outboundView
}

// Stack is the layers of a view. Stacks are immutable.
type Stack struct {
	// Layers are in a fixed order: where two of them make a resource of one
	// name, the first counts. What is equal in two views of one [Index], or of one
	// and the next, is one pointer.
	Layers []*Layer

	hash mesh.Hash
}

// Hash covers the hashes of all layers, in order.
func (s *Stack) Hash() mesh.Hash { return s.hash }

// Parts are the parts of all layers, in order.
func (v *View) Parts() iter.Seq[Part] {
	return func(yield func(Part) bool) {
		for _, l := range v.Layers {
			for _, p := range l.Parts {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// Layer is a list of parts that proxies share as a whole. Layers are immutable.
type Layer struct {
	// Name tells the layers of a view apart.
	Name string
	// Parts are in a fixed order. A part that did not change from one snapshot
	// to the next is the same pointer in the next layer.
	Parts []Part

	hash mesh.Hash
}

// The names of layers; a route table has one of its own, RoutesLayer and the
// table's name.
const (
	ClustersLayer  = "clusters"
	EndpointsLayer = "endpoints"
	FixedLayer     = "fixed"
	ListenersLayer = "listeners"
	InboundLayer   = "inbound"
	RoutesLayer    = "routes/"
)

// Hash covers the name, and the hashes of all parts, in order.
func (l *Layer) Hash() mesh.Hash { return l.hash }

// Warning is about one object.
type Warning struct {
	Key     mesh.Key
	Origin  *mesh.Origin
	Message string
}

// Part is the whole input of one builder of package envoy. Parts are immutable
// and shared between views.
type Part interface {
	// Hash covers all content of the part, its kind included, but no origins.
	Hash() mesh.Hash
	// Origins are the objects that the part was made from, for people; sorted,
	// may be empty.
	Origins() []*mesh.Origin
}
