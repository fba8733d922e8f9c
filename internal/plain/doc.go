// Package plain makes words that a peer chose fit to be shown: in a line of a
// log, in JSON and on a terminal.
//
// It is not for what is compared or looked up: a name that was made plain may be
// another one's.
package plain
