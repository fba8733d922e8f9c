// Package stream is the protocol core of incremental xDS, both halves: what a
// server sends and when ([Server]), and what a client names, accepts and refuses
// ([Client]).
//
// It does no I/O, starts no goroutine and reads no clock: the time is an
// argument, and [Server.NextDeadline] says when to ask again. Bodies are opaque
// bytes and versions pass through unchanged; a version must identify content,
// and must be the same on every replica and after every restart. It knows
// nothing of a mesh. Only the incremental (delta) variant is spoken.
//
// The server half is used by the control plane towards agents and Envoys, and by
// the agent's relay towards its Envoys; the client half by the relay towards the
// control plane. Neither is safe for concurrent use: the goroutine that owns a
// stream owns its half. A [Generation] is immutable and shared by any number of
// streams.
//
// # What the server half promises
//
//   - Order. Clusters first, directly behind them the endpoints of every cluster
//     in that response that the peer already asked for, then listeners, routes,
//     virtual hosts; then what is gone, listeners before clusters, in responses
//     of their own. A later type waits for the answer to the earlier one, for 20 s
//     at most.
//   - A refusal is state. Envoy applies a refused response in part, so every name
//     in it is unknown until it has been accepted again: the culprit is found by
//     what the peer says, else by halving; the others are sent again without it,
//     and it is sent again as it was last accepted.
//   - Reconnect. What the peer says it has is not sent again, but for the
//     endpoints of clusters that are sent and the routes of listeners that are
//     sent, and whatever was asked for without a version.
//   - Nothing is kept that need not be. While a peer has exactly what its
//     generation says, its state is a pointer to that generation and a shared set
//     of names.
package stream
