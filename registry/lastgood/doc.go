// Package lastgood is what sources of text have in common: which objects their
// texts give to the mesh, with the last good version of each that is broken.
//
// A text is a file of a directory or a value of a key-value store; where texts
// come from, and when one is to be believed, is the business of the source. A
// [Set] holds those that are believed. For every object it knows which texts
// speak of it, which of them is in force, and which earlier version stands in
// for a broken one; it makes the [mesh.Fragment] of the source of what changed,
// at the price of the change. A [Keeper] has all of it on disk, so that a last
// good version also survives a restart, and knows to wait for a receiver that
// holds removals back.
//
// It is not a judge of manifests: that is package manifest's business, which
// [Manifests] asks.
//
// Goroutines: a Set belongs to the one goroutine of its source. A Keeper writes
// in [Keeper.Run], so that a slow disk delays no fragment; its methods may be
// called by others. What a Set hands out is never written to again.
//
// The package is called by the sources of package registry.
package lastgood
