// Package xds serves configuration to connected proxies over delta xDS. Its child package
// cache makes the configuration from snapshots of the mesh. This package owns the streams:
// it admits them, updates proxies when there is a new snapshot, sends responses, and keeps
// the status.
//
// [Server] serves the aggregated discovery service (incremental variant) to agents, and to
// Envoys that connect without one. [Admission] authenticates peers; the node that a peer
// claims to be is checked against the authenticated identity. [Snapshots] delivers the
// state of the mesh, package cache the configuration of a proxy, and package stream
// decides when it is sent. The gRPC server needs the options of package wire: responses
// are bytes that all streams share.
//
// # What a change costs
//
// Package cache does equal work once for all proxies. A stream is not notified of a
// snapshot that changes nothing for its proxy. [Work] counts what was done.
//
// # Goroutines
//
// [Server.Run] updates all proxies for a new snapshot, in as many goroutines as there are
// processors, and notifies the streams for which something changed. At most one push is
// pending for a stream; later changes merge into it. All other state of a stream belongs
// to the goroutine of its handler; a second goroutine receives for it. The handler never
// blocks in sending: while a peer has not read a large response, the next one is not made.
// So a proxy that reads slowly delays nobody, and it holds one response, by reference.
package xds
