// Package attest knows which hosts there are and what each is entitled to. It
// admits a host by a proof (its child jointoken; others later, one folder each),
// records the entitlement by name in the state directory, and takes it back.
//
// The record outlives the proof: a host renews for as long as its record stands.
// It carries a binding, a random number of that one admission, which is in every
// certificate that follows from it. Replacing a host gives the name a new
// binding, so the certificates of the one before end at once, and removing a
// host ends all of them. Whoever holds a stream open for a host waits on the
// channel that Find gives and ends the stream when it is closed.
//
// It signs nothing and reads no certificate; pki/issue does. The callers are
// pki/issue and, for `fairlead token` and `fairlead host`, the control plane's
// admin socket. Nothing here has a goroutine. All methods may be called
// concurrently, also while a change is being written.
package attest
