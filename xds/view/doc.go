// Package view derives from the state of the mesh what one proxy may see and
// must do.
//
// A [View] is a list of parts. A part is the whole input of one builder of
// package envoy, and its hash is the hash of all its content, so the key of a
// cache cannot omit an input. Labels, names, addresses and ids of proxies never
// enter a part, only the result of selecting by them: proxies that must do the
// same have equal parts and share the bytes made from them.
//
// What is decided here: which services, routes and rules a namespace sees, what
// a Sidecar narrows or adds, which DestinationRule holds, which listeners there
// are and who has an address, where each route leads, and what mTLS a port
// demands. What is not: anything that Envoy has a word for; see package envoy.
//
// Package xds calls it, once a proxy and snapshot, and the command line for
// offline rendering. An [Index] holds what proxies of a snapshot have in common
// and what the next snapshot may take over.
//
// Everything is pure: no clock, no I/O, no order taken from a map. It starts no
// goroutine and may be called from any.
package view
