// Package files is the source that reads directories of YAML, and the file of mesh settings.
//
// It promises four things. A change is found however it is made. Absence is not emptiness:
// what cannot be read never removes anything. A broken file or object leaves its last good
// version in force, also across a restart. A half-written file is never used.
//
// It does not validate manifests; package manifest does. It does not guard against mass
// removals either; package registry does, for all sources.
//
// A file system event is only a hint. The paths that it names are checked at once. A scan of
// everything runs at the start, when events were lost, and every few seconds. Each check
// compares device, inode, size and times. A file that differs has to be stable (see accept.go)
// before it is read, and is decoded only if its content changed.
//
// Goroutines: [Source.Run] has a loop that owns all state, a reader of kernel events that
// passes on a bounded set of names, and a writer of the state directory. If several files are
// to be read at one time, as many goroutines as there are cores read and decode them, and end
// before the loop continues. Other goroutines see immutable values only, through
// [Source.Status].
//
// The package is called by the composition of the control plane.
package files
