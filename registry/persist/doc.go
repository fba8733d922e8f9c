// Package persist writes the state of a source to disk. The state is divided into parts, so
// that a change writes only a few of them.
//
// A [Writer] writes in the background, so that a slow disk delays no fragment. A [Decision] is
// what the receiver of fragments, the guard, has decided last: removals that it holds must not
// be written, because they are to be decided again after a restart.
//
// It knows no format and no file; those belong to the source.
//
// Goroutines: a Writer writes in [Writer.Run]; all other methods may be called from any
// goroutine.
package persist
