// Package accept accepts the connections of port 15012. It makes the TLS handshake, determines
// whether the peer is authenticated, limits unauthenticated peers, and passes each connection
// to one of two gRPC servers.
//
// A peer is authenticated if it has presented a client certificate that [Config.Identify]
// accepts. All others are limited in time, in bytes, in number for each address and in total.
// At a limit, the oldest connection of the address that has the most is closed for a new one.
// An authenticated connection is never closed for another one.
// docs/adr/0024-unauthenticated-connections.md has the reasons.
//
// Handshakes need an admission slot: no more compute at a time than there are CPUs, and a
// handshake that has begun is finished before others begin. So a server with little CPU serves
// some of the peers that connect at once instead of none. The timeout of a connection does not
// run while it waits for the server, and a connection holds no slot while the server waits for
// its bytes.
//
// An authenticated connection begins with a [Gate]: little is read of it until package xds
// has time for its first stream (docs/adr/0056-a-fleet-that-returns.md).
//
// Calls are not authorized here: package issue authorizes requests for certificates, and
// package xds streams.
//
// [Acceptor.Run] has one goroutine that accepts, and one for each connection until that is
// passed on. A mutex guards the list of connections.
package accept
