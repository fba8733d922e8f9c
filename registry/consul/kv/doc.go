// Package kv is configuration in Consul's key-value store.
//
// Every key below a prefix that ends in .yaml or .yml is a text of manifests,
// under the rules of the files of a directory: validity is per object, a broken
// object's last good version stays, also across a restart, and a listing that
// could not be read whole changes nothing. See package lastgood, which has those
// rules.
//
// The source holds one blocking query for the whole prefix. Consul answers with
// all of it at one index, so what was written in one transaction arrives in one
// Fragment. An answer that is empty, or the first one, is accepted only if the token
// may read the prefix: Consul leaves out the rest, and says so only to clients with a
// token.
//
// Goroutines: [Source.Run] has one for the blocking query, one that reads the prefix
// at intervals, one that writes the state directory, and a loop that owns
// all state. Other goroutines see immutable values only, by [Source.Status].
//
// The package is called by the composition of the control plane and by the
// command line.
package kv
