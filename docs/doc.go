// Package docs holds the tests of the documentation: what its pages name is
// there, and what a reader has to be able to look up has its place.
//
// It has no code and nobody imports it. It starts no goroutine.
package docs
