// Package mapping makes objects of the mesh of what Consul's catalog says of one
// service. It is pure: no client, no clock, no state.
package mapping
