// Package logrotate bounds the logs that one Envoy writes to files.
//
// It finds access logs by what Envoy holds open for appending (/proc/PID/fd), so that nobody has
// to say where they are, and touches no other file: it renames a file only where its device and
// inode are those that Envoy holds, follows no symbolic link, and leaves files of other users and
// in the agent's own directories alone. A file that is large enough becomes FILE.1, FILE.1 becomes
// FILE.2, and so on. Then a new FILE is made that other users cannot read, and Envoy is asked to
// open its logs again. Until Envoy does so, it writes to FILE.1: no line is lost, and none is in
// two files.
//
// Envoy's output, which it cannot open again, is copied and truncated, or read on to a writer.
//
// The package keeps no state on disk for access logs. The first thing that it asks of an Envoy is
// to open its logs again: that finishes what an agent left that was killed.
//
// New starts nothing. Run owns all state but that behind mu, on the caller's goroutine, and one
// more that reads the output on. Status may be called from any goroutine.
package logrotate
