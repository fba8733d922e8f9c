// Package view derives from the state of the mesh what one proxy may see and
// must do.
//
// A [View] is a list of parts. A part is the whole input of one builder of
// package envoy, and its hash is the hash of all its content, so the key of a
// cache cannot omit an input. Labels, names, addresses and ids of proxies never
// enter a part, only the result of selecting by them: proxies that must do the
// same have equal parts and share the bytes made from them.
//
// Everything is pure: no clock, no I/O, no order taken from a map.
package view
