// Package hosttest runs meshes in tests whose hosts are network namespaces on one switch. A host has
// its own resolv.conf and hosts file, its own users, agent, Envoy and packet capture, and unmodified
// programs. Its callers are tests and benchmarks; they need root and nft.
//
// It is internal/meshtest with hosts of internal/nethost. Every process is ended with its test.
package hosttest
