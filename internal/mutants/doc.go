// Mutants is a mutation test of the code that decides what is kept from one snapshot to the
// next: the fields of keys, the parts of hashes and comparisons, and the steps that find
// what a change affects. In files with rules for users (gateways, networks, credentials), it
// takes out each decision, too.
//
// It finds the sites by their shape in the syntax tree (sites.go, rules.go). It copies each file,
// and puts a switch around each site. The tests of the packages are built once with the
// copies (go test -overlay), so the worktree does not change. For each site, the tests run
// with that one switch set, the shortest first: the property tests
// (xds/cache/equivalence_test.go, registry/mesh/equivalence_test.go) and the short tests of the
// packages, until one fails. A site at which every test passes is a survivor.
// survivors.txt in this directory lists the survivors that are accepted, and why.
//
//	go run ./internal/mutants                      all sites, or those that are left
//	go run ./internal/mutants -file index_diff.go  those of one file
//	go run ./internal/mutants -list                list the sites only
//	go run ./internal/mutants -budget 10m          stop after some time; run it again to continue
//
// Results are in -state, one line for each site. A site is run again if its file changed,
// or, if it survived, with -again.
package main
