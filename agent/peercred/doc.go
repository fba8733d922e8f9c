// Package peercred listens on unix sockets of the agent and checks the peer credentials of the
// kernel: a connection of a process whose uid may not use the socket is closed before a byte
// of it is read. A [Guard] also requires a token in each gRPC call, and limits connections
// that have not shown it. [Process] and [User] say who is connected, for sockets with other
// checks.
//
// The callers are package agent's children that serve Envoy, and those that ask who serves a socket. It is not for sockets that people
// use, where a rejected caller should get an explanation. It starts no goroutine.
package peercred
