// Package bootstrap is what an Envoy is told before it speaks xDS, and what it
// says of itself when it does: the bootstrap configuration, and the node with
// its metadata in both directions. It also names the types that only agents
// and control planes exchange on an xDS stream.
package bootstrap
