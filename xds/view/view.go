package view

import "github.com/fairlead/fairlead/registry/mesh"

// View is what one proxy may see and must do.
type View struct {
	// Parts are in a fixed order; two views of equal parts are equal.
	Parts []Part
	// Class is the hash of the hashes of Parts: proxies of one class are sent
	// the same bytes.
	Class mesh.Hash
	// Warnings are what a person should know of this view: what was left out,
	// and why. They are no part of Class.
	Warnings []Warning
}

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
