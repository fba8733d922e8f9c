// Package stream is the protocol core of delta (incremental) xDS. It has both halves: the
// server ([Server]) decides what is sent and when; the client ([Client]) subscribes,
// accepts and rejects.
//
// It does no I/O, starts no goroutine and reads no clock: the time is an argument, and
// [Server.NextDeadline] says when to call again. Bodies are opaque bytes, and versions are
// passed through unchanged. A version must identify content and must be the same on every
// replica and after every restart. The package knows nothing of a mesh. State-of-the-world
// xDS is not implemented.
//
// The control plane uses the server half towards agents and Envoys. The agent's relay uses
// the server half towards its Envoys and the client half towards the control plane.
// Neither half is safe for concurrent use: the goroutine that owns a stream owns its half.
// A [Generation] is immutable and shared by any number of streams.
//
// # What the server half guarantees
//
//   - Order. Clusters are sent first. Directly behind them follow the endpoints of
//     the clusters in that response to which the peer is subscribed; then extensions
//     (ECDS), listeners, routes and virtual hosts. Removals come last, in responses of
//     their own, listeners before clusters. A later type waits for the answer to the
//     earlier one, for at most 20 s. An extension that a peer has is not removed: the
//     peer unsubscribes when its last listener that names it is gone.
//   - NACK. Envoy applies a NACKed response in part, so every name in it is unknown
//     until it has been accepted again. The rejected resource is found from the
//     error message, or by bisection. The others are sent again without it, and it is
//     sent again in the version that was accepted last. A listener that could not bind is
//     sent again later, because its address may become free.
//   - Reconnect. What the peer lists in initial_resource_versions is not sent again.
//     Exceptions are the endpoints of clusters that are sent, the routes of listeners
//     that are sent, and names to which the peer subscribes without a version.
//   - Memory. While a peer has exactly what its generation contains, its state is a
//     pointer to that generation and a shared set of names.
//
// # Words used in this package
//
//   - A [Generation] is everything that a peer is to have; the target is the one set
//     last. It consists of layers, which peers share.
//   - A mergedSet has the resources of one type in all layers of a generation.
//   - A subscriptionState is what is known of one list of resources on one stream:
//     of a type, or of the virtual hosts of one route configuration. Its pending part
//     exists only while something is to be sent or answered, or differs.
//   - A resourceState is what is known of one name that differs.
//   - A subscribedDelta is what must be sent to get from one merged set to another.
package stream
