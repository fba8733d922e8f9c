// Package edgegateway has the example's test: it does what its README tells people to do, with
// real Envoys, and sees what it says they will see.
//
// Nobody imports it. The manifests are in mesh.
package edgegateway
