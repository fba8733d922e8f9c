// Package logpipe writes a process's log to a pipe that somebody else reads, such as the journal's, and
// never waits for that reader for long: a journal that hangs would else stop every goroutine that has
// something to log. Lines that the reader does not take are dropped, and their number is a line of
// its own when it reads again.
//
// As long as lines are taken, a line is written when Write returns: nothing is lost at the end of the
// process. There is a goroutine for each line while it is written; at most one waits for a reader.
package logpipe
