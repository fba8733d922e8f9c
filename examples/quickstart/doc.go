// Package quickstart has tests of the example's script. Package internal/e2e/pages follows its README.
//
// It has no code and nobody imports it. The service is in app, the manifests are
// in mesh, and demo.py runs all of it by hand.
package quickstart
