// Package mapping makes objects of the mesh of what Consul's catalog says of one
// service. The table of docs/consul-mapping.md is its specification.
//
// A registration is what somebody says who may register services, and no more.
// It may narrow what the settings give (be unhealthy, weigh less, demand mTLS),
// never widen it: which name, host, identity and virtual address a service has
// comes from its name and from the settings. What is not believed or cannot be
// used is left out and told in a [Note].
//
// It is called by package consul, once for each change of a service. Everything
// is pure: no client, no clock, no state; the same entries in any order give the
// same objects with the same hashes. A [Mapper] may be used from any goroutine.
package mapping
