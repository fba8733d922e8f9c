// Package view derives from a snapshot of the mesh what one proxy can see and has to do.
//
// A [View] is a [Stack] of layers, and a [Layer] is a list of parts. A [Part] is the whole
// input of one builder of package envoy. Its hash covers all its content, so no input can
// be missing in a cache key. Labels, names, addresses and node ids of proxies are in no
// part, only the result of matching selectors against them. Proxies with the same
// configuration therefore have equal parts, and share the bytes that are made from them.
//
// This package decides which services, routes and rules a namespace sees, what a Sidecar
// restricts or adds, and which DestinationRule applies. It decides which listeners there
// are, which of them has an address, where each route leads, and the mTLS mode of each
// port. How Envoy expresses this is the task of package envoy.
//
// An [Index] is a snapshot prepared for building views. It takes over what it can from the
// index before it. Proxies with the same sidecar scope share a scopeState, which is updated
// from index to index. If only endpoints, rules or routes changed, the scopeState is edited
// in place, and [Index.Rebuild] costs each proxy one check. If objects were added or
// removed, the scope is computed again from cached parts. A change is found by comparing
// pointers, because snapshots share unchanged objects. Its result is compared by hash. So a
// change of a comment in a file costs a little work here and none afterwards. Equal parts
// are always one pointer, whichever way they were made. [Index.Stats] counts the work.
//
// Package xds calls this package once for each proxy and snapshot. The command line calls
// it for offline rendering.
//
// Everything is pure: no clock, no I/O, no order taken from a map. The package starts no
// goroutine, and any goroutine may call it. Proxies with one sidecar scope wait for each
// other while the scope is updated. There are three kinds of locks, taken in this order: a
// view's, its scopeState's, and those of the maps that find equal content.
package view
