package files

import "time"

// Composed says how a fragment was made.
type Composed struct {
	Source string
	// Noticed is when the first changed file was noticed, by an event or a scan; Decoded when its
	// new version was accepted; Sent when the fragment was ready.
	Noticed, Decoded, Sent time.Time
}
