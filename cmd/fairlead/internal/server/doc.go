// Package server composes the control plane: it makes every part from one
// Config, in the order that their arguments force, and runs them together.
//
// Here, and nowhere else, the registry, xDS and the authority meet: the small
// types that fit one to the other are in glue.go, what admin.sock answers is in
// api.go. The package decides nothing by itself.
//
// [Server.Run] has a goroutine for each part that runs: the registry, xDS, the
// gRPC server that xDS and the signing API share, and the administration. It
// ends when its context does or when any part fails; the first
// error is the process's.
package server
