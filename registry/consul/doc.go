// Package consul is a source of package registry: the catalog of one datacenter
// of Consul.
//
// It keeps a picture of the datacenter: the health entries of every service, as
// Consul has them. Package mapping makes of each service its piece of the mesh,
// and what did not change in Consul is the same piece, by pointer.
//
// Absence is not emptiness. What cannot be read, or may not be read any more,
// stays as it was last seen, and the status says so.
package consul
