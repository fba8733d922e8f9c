// Package relay stands between the control plane and the Envoys of one workload,
// and ends xDS on both sides: it is a client of the servers, and a server of its
// Envoys on a unix socket. A control plane that dies, restarts or is replaced is
// invisible to Envoy.
//
// What Envoy has accepted lies on disk, with what it asked for. A relay that
// starts serves that first, whether or not a server can be reached, tells the
// server which versions it has, and gets the differences. It accepts an update
// upstream only when its Envoy has; what Envoy refuses is named exactly, and the
// last version that it accepted stays in force.
//
// The newest Envoy is the one whose verdict counts; every other one, of which
// hot restart makes two, is served the same state as a peer of its own.
//
// Between server and relay the virtual hosts of a route table travel by
// themselves, whatever the Envoy: an edit costs one of them. The relay joins them
// for an Envoy that takes a table only whole, shows no Envoy a table before its
// virtual hosts have come, and finds out for which of them Envoy refuses a table.
//
// It decodes no resource but for that, and knows nothing of a mesh. Secrets never
// pass it.
//
// New starts nothing. Run owns all goroutines: one (core) that owns all state,
// one that holds the stream to a server and one that reads it, one that writes
// the store, and three a connected Envoy. The core never waits for any of them,
// so none can hold up another. Status and SetHealth may be called from any
// goroutine.
package relay
