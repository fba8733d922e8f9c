// Package loglimit limits the log lines that peers can cause: of each peer, and of all
// together.
//
// It counts and decides. The caller writes the line, with the number of omitted ones. It
// has no goroutine.
package loglimit
