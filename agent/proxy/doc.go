// Package proxy runs one Envoy as a process that outlives its agent.
//
// It finds the binary and starts it in a session of its own, with its output in a file. It
// records process id and start time on disk, watches the process by pidfd, restarts it when it
// exits, and drains and stops it when the agent is stopped. If an agent is killed, its Envoy
// keeps serving; the next agent reads the record, verifies that the process is the recorded
// one, and takes over. An Envoy without a record is replaced if its bootstrap is in the agent's run
// directory: see strays.
//
// It does not know xDS and writes no bootstrap: its caller, package agent, chooses Envoy's
// arguments.
//
// New starts nothing. Run owns the process, on the caller's goroutine and two more; Status may
// be called from any goroutine.
package proxy
