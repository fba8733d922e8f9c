// Package world writes meshes to measure with: the same spec gives the same
// bytes, always. It knows which workload every proxy of the fleet is, and makes
// the changes whose cost is measured, each by atomic rename.
//
// There are no goroutines in it.
package world
