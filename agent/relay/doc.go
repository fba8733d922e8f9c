// Package relay is an xDS proxy between the control plane and the Envoys of one workload. It
// is a client of the control plane, and an xDS server for its Envoys on a unix socket. Envoy
// does not notice when the control plane fails, restarts or is replaced.
//
// The relay stores on disk what Envoy has accepted and what Envoy subscribes to. After a start
// it serves that first, whether or not the control plane is reachable. It sends the stored
// versions to the control plane and receives only the differences. It acknowledges an update
// upstream only when its Envoy has acknowledged it. It reports exactly which resources Envoy
// rejects, and keeps their last accepted versions in force.
//
// The newest Envoy decides: an update is accepted or rejected as that Envoy answers. Every
// other Envoy (a hot restart runs two) is served the same state on its own stream.
//
// The control plane sends the virtual hosts of a route configuration as separate resources
// (VHDS) to every relay, whatever the release of its Envoy, so that an edit costs one virtual
// host. For an Envoy without VHDS the relay merges them into the route configuration. It shows
// no Envoy a route configuration before its virtual hosts have come. If Envoy rejects a merged
// route configuration, the relay finds by bisection which virtual host is the reason.
//
// Apart from that the relay decodes no resource and knows nothing of a mesh. Secrets never
// pass through it.
//
// New starts nothing. Run owns all goroutines: the core, which owns all state; one that holds
// the stream to the control plane and one that reads it; one that writes the store; and three
// for each connected Envoy. The core never waits for any of them, so none can delay another.
// Status and SetHealth may be called from any goroutine.
package relay
