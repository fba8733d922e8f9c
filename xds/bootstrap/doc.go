// Package bootstrap is what an Envoy is told before it speaks xDS, and what it
// says of itself when it does: the bootstrap configuration, and the node with
// its metadata in both directions. It also names the types that only agents
// and control planes exchange on an xDS stream.
//
// It writes no file and starts no Envoy. The agent calls it to build, package
// xds and the agent's relay to parse. Everything is pure: it starts no goroutine
// and may be called from any.
package bootstrap
