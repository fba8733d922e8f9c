// Package admin is the local and the operational interface of both processes,
// the server and the agent: health, readiness and metrics over HTTP, and
// everything that changes state or shows more than counters on a unix socket,
// admin.sock, which only the process's own user, root, and its group can open, and which refuses
// Envoys.
//
// It knows nothing of meshes or certificates: whoever composes a process hands
// it the handlers and the questions. [Client] is the other end, used by the
// subcommands.
//
// [Server.Run] owns one goroutine for each listener and ends with its context.
package admin
