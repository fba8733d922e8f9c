// Package consul proves that a mesh over a Consul catalog holds, whatever befalls
// Consul: no request fails as long as a healthy instance exists, and what the
// control plane has is afterwards what Consul says.
//
// It has tests only. Each runs a real Consul (one server by plain HTTP, or three
// with TLS and ACLs), the real binary, agents and Envoys under load; nobody calls
// it.
package consul
