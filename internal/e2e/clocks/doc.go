// Package clocks proves that a mesh survives wrong clocks: those of the server and of
// single hosts are set ahead, back and to 1970 under load, and set right again.
//
// It has tests only. Each runs the real binary, built so that the wall clock of each
// process can be set, with agents and Envoys, by package meshtest; nobody calls it.
// The clocks of Envoys stay right: an Envoy whose own clock is a day off refuses its
// peers' certificates, and no agent can help that.
package clocks
