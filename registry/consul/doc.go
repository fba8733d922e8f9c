// Package consul is a source of package registry: the catalog of one datacenter
// of Consul.
//
// It keeps a cache of the catalog: the health entries of every service, as Consul has
// them. Package mapping makes a fragment of the mesh of each service; if a service did
// not change in Consul, its fragment is the same, by pointer.
//
// Absence is not emptiness. What cannot be read, or not any more, stays as it was
// last seen, and the status says so.
package consul
