// Package traffic proves what a mesh does to traffic: protocols, mTLS modes, who
// may speak to whom and as whom, and that identities renew under load.
//
// It has tests only. Each runs the real binary, agents and Envoys by package
// meshtest; nobody calls it.
package traffic
