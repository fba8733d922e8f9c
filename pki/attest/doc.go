// Package attest has the records of the hosts and their entitlements. It admits a host by a
// proof (its child jointoken; others later, one package each), records the entitlement by name
// in the state directory, and revokes it.
//
// The record outlives the proof: a host renews for as long as its record exists. It has a
// binding, a random number of that admission, which is in every certificate that results from
// it. Replacing a host gives the name a new binding, so the certificates of the host before
// are rejected at once; removing a host revokes all of them. The owner of a host's stream
// waits for the channel that Find returns, and ends the stream when it is closed.
//
// It signs nothing and reads no certificate; pki/issue does. The callers are pki/issue and,
// for `fairlead token` and `fairlead host`, the control plane's admin socket. Nothing here has
// a goroutine. All methods may be called concurrently, also while a change is being written.
package attest
