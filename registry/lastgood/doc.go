// Package lastgood keeps the last good versions of objects in force. It is shared by all
// sources of text.
//
// A text is a file of a directory or a value of a key-value store. The source decides where
// texts come from and when to accept one. A [Set] holds the accepted texts. For every object
// it knows which texts define it, which definition is in force, and which earlier version
// replaces a broken one. It builds the [mesh.Fragment] of the source incrementally. A
// [Persister] keeps the set on disk, so that a last good version survives a restart, and waits
// while the guard holds removals.
//
// It does not validate manifests: package manifest does, which [Manifests] calls.
//
// Goroutines: a Set belongs to the one goroutine of its source. A Persister writes in
// [Persister.Run], so that a slow disk delays no fragment; its methods may be called from
// others. What a Set returns is immutable.
//
// The package is called by the sources of package registry.
package lastgood
