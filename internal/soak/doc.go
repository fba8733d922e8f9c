// Command soak runs the tests that a change touches many times, with the race detector and beside
// a load: a test that passes once on an idle machine may fail on a busy one (make soak).
//
// It compares the sources of tests with those of a base commit. A test function that changed runs
// by its name. Where anything else in a test file changed, or in a package for tests, all tests
// that may use it run: those of the package, and of the packages that import it. A change of the
// product alone selects nothing: its own new tests show what it does.
//
// The load is goroutines of this process, so it ends with it, whichever way that ends. One run at a
// time runs beside it. The command fails if one run fails, and also if a test is skipped in every
// run.
package main
