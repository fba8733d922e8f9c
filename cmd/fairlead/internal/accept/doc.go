// Package accept takes the connections of port 15012: it makes the TLS
// handshake, finds out whether the peer is authenticated, bounds what peers that
// are not may take, and hands each connection to one of two gRPC servers.
//
// A peer is authenticated when it has presented a client certificate that
// [Config.Identify] accepts. All others are bounded in time, in bytes, in number
// for each address and in number in all, and they give way: where there is no
// room, the one that has been there longest of the address that has the most is
// closed for a new one. An authenticated connection is never closed for another
// one. docs/adr/0024-unauthenticated-connections.md has the reasons.
//
// Handshakes begin in turn: no more compute at a time than there are CPUs, and what
// was begun is finished before others begin, so that a server that has little CPU
// serves some of those who come at once instead of none. While a connection waits
// for the server its time does not pass, and while the server waits for a peer's
// bytes that peer has no turn.
//
// It is not where calls are authorized: that is done for each call, by package
// issue for certificates and package xds for streams.
//
// [Acceptor.Run] has one goroutine that accepts, and one for each connection
// until that is handed over. A mutex guards who is there.
package accept
