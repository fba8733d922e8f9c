// Package meshgen generates the meshes of the measurements: the same spec always gives the
// same bytes. It knows which workload every proxy of the fleet is, and makes the changes whose
// cost is measured, each by atomic rename.
//
// There are no goroutines in it.
package meshgen
