// Package fold makes a whole route configuration of one that expects its
// virtual hosts separately (by VHDS), and of those.
//
// It joins encodings and decodes none of them beyond the names: a table of a
// thousand hosts is folded anew for each host that changes. Package xds/envoy
// makes whole tables with it, so that both forms of a table are the same by
// construction, and the agent's relay does, for Envoys that want tables whole.
// Which form an Envoy is given is decided here, too, for server and relay alike.
// It starts no goroutine, keeps nothing, and may be called from any.
package fold
