// Package files is the source that reads directories of YAML, and the file of
// mesh settings, from a file system.
//
// What it promises: a change is picked up however it is made; absence is not
// emptiness, so that what cannot be read never removes anything; a broken file
// or object leaves its last good version in force, also across a restart; half
// a write is never believed.
//
// It is not a judge of manifests: what a document means, and whether it is
// valid, is package manifest's business. It is not
// the guard against mass removals either: that is the registry's, for every
// source alike.
//
// An event of the file system is only a hint. The paths it names are looked at
// again at once; a scan of everything runs at start, when events were lost and
// every few seconds. Each look compares device, inode, size and times; a file
// that differs has to hold still (see believe.go) before it is read, and only
// one whose content differs is decoded.
//
// Goroutines: [Source.Run] has a loop that owns all state, a reader of kernel
// events that hands over a bounded set of names, and a writer of the state
// directory. Where several files are to be read at one time, as many goroutines as
// there are cores read and decode them, and end before the loop goes on. Other goroutines see immutable values only, by [Source.Status].
//
// The package is called by the composition of the control plane.
package files
