// Package mapping makes objects of the mesh of what Consul's catalog says of one
// service. The table of docs/consul-mapping.md is its specification.
//
// A registration may narrow what the settings give (be unhealthy, weigh less, demand
// mTLS), never widen it: the name, hosts, identity and virtual address of a service
// come from its name in Consul and from the settings. What is not trusted or cannot be
// used is left out, and a [Note] says so.
//
// It is called by package consul, once for each change of a service. Everything
// is pure: no client, no clock, no state; the same entries in any order give the
// same objects with the same hashes. A [Mapper] may be used from any goroutine.
package mapping
