// Package faults proves that a mesh holds: whatever process dies, whatever
// becomes of the files, traffic goes on as far as anything is left to serve it.
//
// It has tests only. Each runs the real binary, agents and Envoys under load, by
// package meshtest; nobody calls it.
package faults
