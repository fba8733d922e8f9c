// Package network has the tests of a mesh whose network fails: hosts and a server in network
// namespaces of their own, with links that a test cuts without a word to either end.
package network
