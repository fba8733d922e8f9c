// Package upgrade proves that state on disk outlives a change of release: what
// the release before left behind goes on in place, with the control plane away,
// too, and what today's leaves can be read by the one before.
//
// It has tests only. They run the real binary, agents and Envoys by package
// meshtest; nobody calls it.
package upgrade
