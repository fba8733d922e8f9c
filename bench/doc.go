// Package bench measures the product as people meet it: the real binary, real
// Envoys, the mesh of the quickstart. `make bench-quickstart` writes RESULTS.md anew: the
// medians of six and more runs, with their spread, each beside its budget.
//
// `make bench-counting` measures what reports of requests cost: metrics, access logs, traces.
//
// `make bench-capture` measures what a request costs on its way: direct, by a listener, captured.
//
// What a change costs a fleet of thousands is measured by bench/fleet; README.md
// has both.
//
// Nothing here fails because something is slow: that is for whoever reads the
// table. The tests of each package assert only what separates right from broken;
// its micro-benchmarks lie beside its code.
//
// There is nothing in this package to import, and it starts no goroutines of its
// own.
package bench
