// Package workload serves a workload's certificate to its Envoy: Envoy's secret discovery
// service (SDS) on a unix socket, with the secrets "default" and "ROOTCA" as in Istio and
// SPIRE.
//
// Only the configured uid gets the key, by the peer credentials of the kernel. A token proves
// that the call comes from the Envoy's own bootstrap, and not from a request that was routed
// to the socket. A renewed identity is pushed on open streams: Envoy uses it for new
// connections, and keeps existing ones.
//
// It does not request certificates; package agent does, and passes them to Set, from any
// goroutine. Run owns the server, whose goroutines are one a stream and one that reads it.
package workload
