// Package mesh is the model of a service mesh, once the files and catalogs that describe it
// have been read.
//
// A source (package files, consul, agents) contributes a [Fragment]. Package registry
// merges fragments into a [Snapshot], the state of the whole mesh. Package view derives
// from a Snapshot what one proxy can see.
//
// Everything here is a value: no lock, no client, no func, no I/O. Slices are sorted and
// shared. A value is not changed after it was put into a Fragment or a Snapshot, so any
// goroutine may read it.
//
// A snapshot is built from the previous one ([Merge]). Unchanged lists, look-up tables and
// objects are shared, so the cost of a change depends on its size. Readers can compare
// pointers to find what changed.
//
// Routing and policy specs stay messages of istio.io/api, with host names resolved and
// defaults made explicit: other types would be a second vocabulary. Services, workloads and
// identities are compact types of our own, because a mesh has very many of them.
package mesh
