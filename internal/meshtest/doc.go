// Package meshtest runs whole meshes in tests: the real binary as control plane
// and agents, real Envoys, and small services, all on loopback addresses that
// belong to one test.
//
// A [Mesh] has a block of addresses, 127.X.Y.1 for the control plane and 127.X.Y.N
// for its hosts, so that meshes of tests that run at once do not meet. Every
// process is ended with its test, by its id.
package meshtest
