// Package consulfleet has the example's test: it runs the demo and does with it
// what its README tells people to do.
//
// It has no code and nobody imports it. What Consul's agents read is in consul,
// the manifests are in mesh, and demo.py runs all of it.
package consulfleet
