// Package peercred listens on unix sockets of the agent and asks the kernel who
// calls: a connection of a process whose uid may not use the socket is closed
// before a byte of it is read. A [Guard] asks for a token besides, in each call of
// gRPC, and bounds connections that have not shown it. [Process] says which process calls, for sockets that ask for something else.
//
// The callers are package agent's children that serve Envoy. It is not for
// sockets that people use, where the answer to the wrong caller should be an
// explanation. It starts no goroutine.
package peercred
