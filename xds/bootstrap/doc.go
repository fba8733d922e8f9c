// Package bootstrap makes the bootstrap configuration of an Envoy, and converts the node
// with its metadata in both directions. It also names the resource types that only agents
// and control planes exchange on an xDS stream.
//
// It writes no file and starts no Envoy. The agent builds bootstraps; package xds and the
// agent's relay parse nodes. All functions are pure and may be called from any goroutine.
package bootstrap
