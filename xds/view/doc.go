// Package view derives from the state of the mesh what one proxy may see and
// must do.
//
// A [View] is a [Stack] of layers, a [Layer] a list of parts. A part is the whole
// input of one builder of package envoy, and its hash is the hash of all its
// content, so the key of a cache cannot omit an input. Labels, names, addresses
// and ids of proxies never enter a part, only the result of selecting by them:
// proxies that must do the same have equal parts and share the bytes made from
// them.
//
// What is decided here: which services, routes and rules a namespace sees, what
// a Sidecar narrows or adds, which DestinationRule holds, which listeners there
// are and who has an address, where each route leads, and what mTLS a port
// demands. What is not: anything that Envoy has a word for; see package envoy.
//
// An [Index] is a snapshot with what it takes over from the one before. Proxies
// that see the same share a realm, which goes from index to index: where only
// endpoints, rules or what routes do with requests has changed, it makes the
// change where it is ([Index.Rebuild] of the proxies costs a look each); where
// something was added or taken away, it works out again who sees what, out of
// parts that are found by what they are made from. What a change can reach is
// found by comparing pointers, for a snapshot shares what did not change; what
// comes of it is compared by hash. So a comment in a file costs a little work
// here and nothing behind it, and whatever path a part was made on, equal ones
// are one pointer. [Index.Stats] counts.
//
// Package xds calls it, once a proxy and snapshot, and the command line for
// offline rendering.
//
// Everything is pure: no clock, no I/O, no order taken from a map. It starts no
// goroutine and may be called from any. Proxies of one realm wait for each other
// while it goes on to a snapshot; the locks are the realm's, the view's and those
// of the maps in which equal content is found, taken in this order of size: a
// view's, its realm's, a map's.
package view
