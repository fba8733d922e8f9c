package envoy

import "github.com/fairlead/fairlead/registry/mesh"

// Resource is one resource as it is sent to Envoy.
type Resource struct {
	TypeURL string
	Name    string
	// Version is a hash of Body: 64 bits in 11 characters, short because thousands are
	// listed.
	Version string
	// Body is the deterministic encoding of the message, without the Any.
	Body []byte
	// Origins are the objects that the resource was made from, to be shown to people.
	Origins []*mesh.Origin
}

// Diagnostic is a message for people about an object, found while resources were built from
// it.
type Diagnostic struct {
	Origin  *mesh.Origin
	Key     mesh.Key
	Message string
}
