// Package xds is the conductor of connected proxies: a snapshot of the mesh, or
// a request, becomes a view, resources, and what streams send.
//
// [Server] serves the aggregated discovery service, incremental variant, to
// agents and to Envoys that connect by themselves. It lets nobody in: who a peer
// is comes from [Admission], and the node that the peer claims to be is held
// against that. What the mesh looks like comes from [Snapshots], what a proxy
// shall have from package view, the bytes from package envoy, and when they are
// sent from package stream. The gRPC server that it is registered on needs the
// options of package wire: responses leave as bytes that all streams share.
//
// # What a change costs
//
// Equal work is done once, whoever needs it: a part of a view is encoded once, a
// layer is a list of parts, and a class a list of layers; each is found by its
// content, and forgotten when nobody uses it. A new layer takes what did not
// change from the one before. Of a snapshot that changes nothing for a proxy its
// stream does not hear. [Work] counts, so that it can be seen.
//
// # Goroutines
//
// [Server.Run] has all proxies see a new snapshot, in as many goroutines as there
// are processors, and rings the doorbells of those for which something changed, so
// at most one push is pending and later changes merge into it. The handler of a
// stream owns all else of that stream's state; a second goroutine receives for
// it. It never blocks in sending: as long as a peer has not read a large response,
// the next one is not made. So a proxy that reads slowly delays nobody, and holds
// one response, by reference.
package xds
