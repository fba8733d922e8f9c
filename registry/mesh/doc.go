// Package mesh is the vocabulary of Fairlead: what a service mesh is, once the
// files and catalogs that describe it have been read.
//
// A source (package files, consul, agents) contributes a [Fragment]; package
// registry merges fragments into a [Snapshot], the state of the whole mesh;
// package view derives from a Snapshot what one proxy may see.
//
// Everything here is a value: no lock, no client, no func, no I/O. Slices are
// sorted and shared, and nobody writes to a value after it has been put into a
// Fragment or a Snapshot, so all of it may be read from any goroutine.
//
// A snapshot is built from the one before ([Merge]): lists, look-up tables and
// objects in which nothing changed are the same ones, so a change costs what it
// touches, and a reader may compare pointers to see that nothing did.
//
// Routing and policy specs stay messages of istio.io/api, with host names
// resolved and defaults made explicit on the way in: declaring them again would
// be a second vocabulary. Services, workloads and identities are compact values
// of our own, because a mesh has very many of them.
package mesh
