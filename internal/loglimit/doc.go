// Package loglimit bounds how many lines a log gets of what peers cause: for
// each of them, and for all of them together.
//
// It counts and decides; writing the line, with the number of those that were
// left out, is the caller's. It has no goroutine.
package loglimit
