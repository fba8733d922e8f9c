// Mutants asks of the tests whether they would notice if somebody forgot a line in
// the code that decides what may be kept: the fields of keys, the parts of hashes and
// comparisons, and the steps that find what a change concerns.
//
// It finds the places by their shape in the syntax tree (sites.go), makes one copy of
// each file in which every place has a switch of its own, and builds the tests of the
// packages once with those copies (go test -overlay): the worktree stays as it is. It
// then runs them for each place with that one switch thrown, the properties first that
// are meant to notice (the nets: xds/cache/equivalence_test.go, registry/mesh/nets_test.go), and,
// for the places that they let pass, the short tests of the packages. A place that no
// test notices is a survivor; survivors.txt beside this file says of each why it may
// be one.
//
//	go run ./internal/mutants                 all places, or those that are left
//	go run ./internal/mutants -file index_diff.go  those of one file
//	go run ./internal/mutants -list           the places alone
//	go run ./internal/mutants -budget 10m     stop after some time; run it again to go on
//
// What is known already lies in -state, a line a place, and is asked again where the
// file with the place or a test has changed, or with -again.
package main
