// Package unixsocket listens on unix sockets, and makes them again when somebody removes their
// files, or the directory that they are in. A cleaner of temporary files does that. Without
// its file a socket still serves old connections, and nobody can open a new one.
//
// It does not check who connects; agent/peercred and cmd/fairlead/internal/admin do.
//
// A socket of a process that is alive is never taken over, nor is a file that is no socket
// deleted while the listener runs. A new directory is used only if its owner and its mode are
// as safe as those of the one before.
//
// A [Listener] has two goroutines, and for a second after each removal one more. They end
// before its Close returns.
package unixsocket
