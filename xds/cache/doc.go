// Package cache owns what is served: it makes what a proxy shall have, and keeps it
// as long as somebody uses it.
//
// [Cache.Get] takes a snapshot of the mesh and a proxy, and gives a [Configuration]:
// the proxy's view (package view), and [Resources], which all proxies with an equal
// view share. Resources are a list of layers and a layer is a list of encoded parts,
// as views are; each is made once, by package envoy, whoever needs it. A new layer
// takes what did not change from the one before.
//
// It knows no connection and sends nothing: package xds does, which gives the
// generation of Resources to the streams of its proxies (package stream).
//
// It starts no goroutine and may be called from any. Who asks for what somebody else
// is making waits for that.
package cache
