// Package serials knows which certificates of a host follow from which, and which
// are in use: so it sees a key that two hold.
//
// Each renewal adds a serial number to the host's chain, behind the one that asked
// for it. A host comes with the newest that it has, so the one in use moves down
// the chain. It may go back once, to one that it has left: its disk was full or
// restored, or a clock was set. That is a return; it is logged, and healed by the
// next renewal. From then on nobody can have what was left, so when that is used
// again while the other is, two hold the key: a fork.
//
// Only connections that are opened count, by the serial that was proven in the
// handshake: what an older connection still does, proves nothing new. A
// connection that began before the one in use moved is such an older one.
//
// It refuses nothing: pki/issue does, where the settings say so. What is lost of
// it costs the detection until the next renewal and nothing else; so a disk that
// is full stops no renewal. Nothing here has a goroutine. All methods may be
// called concurrently.
package serials
