// Package envoy builds Envoy's resources from the parts of a view.
//
// Every builder takes one part, never the whole view, and is pure: the same part gives the
// same bytes on every machine. There is one file for each resource type or filter. It
// assumes a stock Envoy without Istio's own filters. The ALPN protocols are chosen so that
// HTTP/1.1, gRPC and TCP work with it. They say what is HTTP at ports without a declared
// protocol, which Istio does with a filter of its own.
//
// The package decides nothing about the mesh: what a proxy sees, and where a route leads,
// is in the part. Packages xds and the command line call it. It starts no goroutine, and
// any goroutine may call it.
package envoy
