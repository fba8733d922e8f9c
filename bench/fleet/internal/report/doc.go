// Package report keeps figures, and writes them: as a table beside their
// budgets, as charts, and as a baseline that the next ones are compared with.
//
// There are no goroutines in it.
package report
