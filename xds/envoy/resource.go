package envoy

import "github.com/fairlead/fairlead/registry/mesh"

// Resource is one resource as Envoy gets it.
type Resource struct {
	TypeURL string
	Name    string
	// Version is the hash of Body, short enough to list thousands of them: 64
	// bits in 11 characters.
	Version string
	// Body is the deterministic encoding of the message, without the Any.
	Body []byte
	// Origins are the objects that the resource was made from, for people.
	Origins []*mesh.Origin
}

// Diagnostic is something a person should know about an object, found while
// resources were built from it.
type Diagnostic struct {
	Origin  *mesh.Origin
	Key     mesh.Key
	Message string
}
