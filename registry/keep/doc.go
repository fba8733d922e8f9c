// Package keep is what sources have in common that outlive a restart: what they
// found is on disk, in parts of which a change writes few.
//
// A [Writer] writes behind whoever changes something, so that a slow disk delays
// no fragment; a [Verdict] is what the receiver of fragments has said, because what
// it holds back is not to be written: after a restart it is to be judged again.
//
// It knows no format and no file, which are the business of the source.
//
// Goroutines: a Writer writes in [Writer.Run]; all other methods may be called by
// anybody.
package keep
