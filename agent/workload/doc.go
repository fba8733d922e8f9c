// Package workload serves a workload's certificate to its Envoy: Envoy's secret
// discovery service (SDS) on a unix socket, with the secrets "default" and
// "ROOTCA" as Istio and SPIRE name them.
//
// The kernel says who calls, and the key goes to the uid that the workload names
// and to nobody else; a token proves that the call comes from the Envoy's own
// bootstrap, and not from a request that was routed here. A renewed identity is pushed on the streams that are open:
// Envoy uses it for new connections, and old ones live on.
//
// It does not ask for identities; package agent does, and hands them over by
// Set, from any goroutine. Run owns the server, whose goroutines are one a
// stream and one that reads it.
package workload
