// Package proxy runs one Envoy as a process that outlives its agent.
//
// It finds the binary, starts it in a session of its own with its output in a
// file, notes process id and start time on disk, watches it by pidfd, starts it
// again when it dies, and drains and stops it when the agent is told to end. An
// agent that was killed leaves its Envoy serving; the agent that comes next
// finds the note, proves that the process is the one it names, and takes over.
//
// It does not know xDS and writes no bootstrap: its caller, package agent, says
// which arguments an Envoy gets.
//
// New starts nothing. Run owns the process, on the caller's goroutine and two
// more; Status may be called from any goroutine.
package proxy
