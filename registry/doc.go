// Package registry is the conductor of the sources: it owns what each of them
// said last, holds back removals that are too large to be applied at once,
// merges all of it and publishes the state of the mesh.
//
// It reads no file and knows no catalog; that is the business of its children,
// which it does not import: they meet as [Source] in the composition of the
// server. It does not look into manifests either, beyond counting what is gone.
//
// # What a reader gets
//
// [Registry.Snapshot] is the latest state, nil until there is a first one worth
// serving: when every source has delivered or, after a wait, what the others
// gave, marked incomplete. [Registry.Subscribe] is a doorbell: it rings when
// there is a newer snapshot, and a slow reader misses rings, never the latest
// state. Both may be used from any goroutine.
//
// # Debounce
//
// Configuration is debounced as in istiod: it is pushed when nothing has changed
// for DebounceAfter, and after DebounceMax at the latest. Health is not: it is
// pushed within milliseconds, over the configuration pushed last, so that half of a
// change to many files never goes out with it. A single change of endpoints is
// pushed at once too; of a burst, the first at once and the rest together, and
// where they change all the time, a few times a second. A checkout of many files
// makes two pushes.
//
// # Cost
//
// A reading is compared with the one before by pointers, and only what differs
// is looked at, merged and filed: the price of a change in a mesh of 100,000
// endpoints is a few passes over arrays of pointers.
//
// # Goroutines
//
// [Registry.Run] runs one goroutine a source and one loop, which owns all
// state; others reach it by atomic values and a channel of requests.
package registry
