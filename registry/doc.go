// Package registry owns the sources of the mesh: it has the last fragment of each, holds
// removals that are too large to be applied at once (the guard), merges all fragments and
// publishes snapshots of the mesh.
//
// It reads no file and knows no catalog; its children do, which it does not import: they meet
// as [Source] in the composition of the server. It does not look into manifests either, except
// to count what is missing.
//
// # Snapshots
//
// [Registry.Snapshot] is the latest state. It is nil until the first one that is worth
// serving: when every source has delivered or, after a timeout, with the fragments of the
// others, marked incomplete. [Registry.Subscribe] signals a newer snapshot; a slow reader
// misses signals, never the latest state. Both may be used from any goroutine.
//
// # Debounce
//
// Configuration is debounced as in istiod: it is pushed when nothing has changed for
// DebounceAfter, and after DebounceMax at the latest. Health is not: it is pushed within
// milliseconds, with the configuration that was pushed last, so that half of a change to many
// files never goes out with it. A single change of endpoints is pushed at once, too. Of a
// burst the first is pushed at once and the rest together, and if endpoints change all the
// time, a few times a second. A checkout of many files makes two pushes.
//
// # Cost
//
// A reading is compared with the one before by pointers, and only differences are processed
// and merged: the cost of a change in a mesh of 100,000 endpoints is a few passes over arrays
// of pointers.
//
// # Goroutines
//
// [Registry.Run] runs one goroutine a source and one loop, which owns all state; others reach
// it by atomic values and a channel of requests.
package registry
