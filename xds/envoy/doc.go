// Package envoy turns parts of a view into Envoy's resources.
//
// Every builder takes one part, never the whole view, and is pure: same part,
// same bytes, on every machine. One file holds a resource type or a filter. A
// stock Envoy is all that is assumed: no filter of Istio's own, and the
// protocols that TLS offers are arranged so that HTTP/1.1, gRPC and TCP pass.
//
// It decides nothing about the mesh: what a proxy sees, and where a route
// leads, is in the part. Packages xds and the command line call it. It starts no
// goroutine and may be called from any.
package envoy
