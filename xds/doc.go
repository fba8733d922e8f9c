// Package xds serves configuration to connected proxies. What is served is owned by
// its child cache, which makes it from snapshots of the mesh; here is everything about
// the streams on which it is asked for: connections, who may have one, which proxies
// see a new snapshot, what is sent, what came of it, and how all of that stands.
//
// [Server] serves the aggregated discovery service, incremental variant, to
// agents and to Envoys that connect by themselves. It lets nobody in: who a peer
// is comes from [Admission], and the node that the peer claims to be is held
// against that. What the mesh looks like comes from [Snapshots], what a proxy
// shall have from package cache, and when it is sent from package stream. The gRPC
// server that it is registered on needs the options of package wire: responses leave
// as bytes that all streams share.
//
// # What a change costs
//
// Package cache owns what is served: equal work is done once, whoever needs it. Of a
// snapshot that changes nothing for a proxy its stream does not hear. [Work] counts,
// so that it can be seen.
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
