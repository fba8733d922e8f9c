// Package quickstart has the example's tests: they do what its README tells
// people to do, on a mesh of their own, and see what it says they will see.
//
// It has no code and nobody imports it. The service is in app, the manifests are
// in mesh, and demo.py runs all of it by hand.
package quickstart
