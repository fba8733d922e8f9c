// Package cache makes the configuration of proxies, and keeps it as long as somebody uses
// it.
//
// [Cache.Get] takes a snapshot of the mesh and a proxy, and returns a [Configuration]: the
// proxy's view (package view), and [Resources], which all proxies with an equal view share.
// Resources are a list of layers, and a layer is a list of encoded parts, as in views. Each
// is made once by package envoy, whichever proxies need it. A new layer reuses what did not
// change from the previous one.
//
// The package has no connections and sends nothing. Package xds does, and gives the
// generation of Resources to the streams of its proxies (package stream).
//
// It starts no goroutine, and any goroutine may call it. A caller that needs what another
// one is building waits for it.
package cache
