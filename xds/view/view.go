package view

import (
	"iter"
	"slices"
	"sync"

	"github.com/fairlead/fairlead/registry/mesh"
)

// View is what one proxy can see and has to do.
type View struct {
	// Stack is everything that the proxy's resources are made from. Proxies whose stacks
	// have equal hashes are sent the same bytes.
	*Stack
	// Warnings tell a person what was left out of this view, and why. They are not part of
	// its hash. [View.OwnWarnings] are those that concern this proxy.
	Warnings []Warning
	// Fallbacks say what of the configuration the release of the proxy's Envoy lacks, and what it
	// does instead; sorted. They are not part of the hash either.
	Fallbacks []string
	// Findings are faults of the mesh that make requests of this proxy fail; nil if there are none.
	// They are not part of the hash either.
	Findings *Findings

	mu sync.Mutex // guards all following fields
	// meshContext, seq and proxy say for which Index and proxy the view was last confirmed.
	// inputs and outbound are what it was made from. meshContext is nil if no Index made
	// the view.
	meshContext *meshContext
	seq         uint64
	proxy       *Proxy
	inputs      viewInputs
	outbound    *outboundView
}

// Stack is the layers of a view. A Stack is immutable.
type Stack struct {
	// Layers are in a fixed order. If two layers have a resource of the same name, the
	// first one counts. Equal layers of two views of one [Index], or of consecutive ones,
	// are one pointer.
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

// Layer is a list of parts that proxies share as a whole. A Layer is immutable.
type Layer struct {
	// Name identifies the layer in its view.
	Name string
	// Parts are in a fixed order. A part that did not change from one snapshot to the next
	// is the same pointer in the next layer.
	Parts []Part

	hash mesh.Hash
}

// The names of layers. Each route configuration is a layer, named RoutesLayer followed by the
// name of the route configuration.
const (
	ClustersLayer  = "clusters"
	EndpointsLayer = "endpoints"
	FixedLayer     = "fixed"
	ListenersLayer = "listeners"
	NamesLayer     = "names"
	InboundLayer   = "inbound"
	ProvidersLayer = "providers"
	RoutesLayer    = "routes/"
)

// Hash covers the name, and the hashes of all parts, in order.
func (l *Layer) Hash() mesh.Hash { return l.hash }

// Warning is a message about one object.
type Warning struct {
	Key     mesh.Key
	Origin  *mesh.Origin
	Message string

	// servedPort is set if it does not concern a proxy whose application serves this port of the
	// object itself.
	servedPort uint32
	// found is set if a [Finding] says the same.
	found bool
}

// servedPort is a port of a service at which the proxy's own application listens.
type servedPort struct {
	service mesh.Key
	port    uint32
}

// OwnWarnings are the warnings that concern this proxy, and that no finding says. Where there is no listener for a port of a service
// because the proxy's own application serves it there, a call to it is answered as without the mesh.
func (v *View) OwnWarnings() []Warning {
	v.mu.Lock()
	served := v.inputs.served
	v.mu.Unlock()
	var out []Warning
	for _, w := range v.Warnings {
		if w.found {
			continue
		}
		if w.servedPort == 0 || !slices.Contains(served, servedPort{w.Key, w.servedPort}) {
			out = append(out, w)
		}
	}
	return out
}

// Part is the whole input of one builder of package envoy. Parts are immutable and shared
// between views.
type Part interface {
	// Hash covers all content of the part and its type, but not its origins.
	Hash() mesh.Hash
	// Origins are the objects that the part was made from, sorted, to be shown to people.
	// There may be none.
	Origins() []*mesh.Origin
}
