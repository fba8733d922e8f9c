// Package safetext makes text from a peer safe to show: in a line of a log, in JSON and on
// a terminal.
//
// It is not for text that is compared or looked up: two names can have the same sanitized
// form.
package safetext
