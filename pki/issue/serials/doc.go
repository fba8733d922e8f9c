// Package serials records which certificates of a host follow from which, and which are in
// use, to detect a host key in two places.
//
// Each renewal adds a serial number to the host's chain, after the one that requested it. A
// host connects with the newest certificate that it has, so the one in use moves along the
// chain. It may go back once, to an earlier one: its disk was full or restored, or a clock was
// set. That is a return; it is logged, and resolved by the next renewal. After that nobody can
// have a later certificate of the old branch, so if both are in use, the key is in two places:
// a fork.
//
// Only new connections count, by the serial number that was proven in the handshake: an older
// connection proves nothing new. A connection that began before the certificate in use changed
// counts as older.
//
// It rejects nothing: pki/issue does, if the settings say so. If a chain is lost, nothing is
// detected until the next renewal; so a full disk prevents no renewal. Nothing here has a
// goroutine. All methods may be called concurrently.
package serials
