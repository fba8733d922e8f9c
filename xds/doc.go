// Package xds is the conductor of connected proxies: a snapshot of the mesh, or
// a request, becomes a view, resources, and what streams send.
//
// [Server] serves the aggregated discovery service, incremental variant, to
// agents and to Envoys that connect by themselves. It lets nobody in: who a peer
// is comes from [Admission], and the node that the peer claims to be is held
// against that. What the mesh looks like comes from [Snapshots], what a proxy
// shall have from package view, the bytes from package envoy, and when they are
// sent from package stream.
//
// # Goroutines
//
// The handler of a stream owns all of that stream's state; a second goroutine
// receives for it. Snapshots are announced to it by a doorbell, so at most one push
// is pending and later changes merge into it, and a proxy that reads slowly
// delays nobody. [Server.Run] rings the doorbells. Views are built by the
// handlers, as many at a time as there are processors; parts and classes are
// shared by their hashes and live as long as a stream uses them.
package xds
