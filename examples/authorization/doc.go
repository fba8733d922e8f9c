// Package authorization has the example's test: it does what its README tells people
// to do, on the mesh of the quickstart, and sees what it says they will see.
//
// It has no code and nobody imports it. The policies are in policies.
package authorization
