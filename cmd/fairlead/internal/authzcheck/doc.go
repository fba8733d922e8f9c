// Package authzcheck says whether a proxy would let a request to its application through, and
// which rule of which AuthorizationPolicy decides that. It reads the configuration of the
// proxy, and needs neither the proxy nor the server.
//
// It chooses the filter chain as Envoy does, normalizes the path as the connection manager of
// the chain does, and asks package xds/authz/judge. Filters that it cannot judge are named.
//
// The package starts no goroutine and keeps no state; any goroutine may call it.
package authzcheck
