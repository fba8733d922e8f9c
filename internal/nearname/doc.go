// Package nearname suggests the name that somebody meant who wrote another one. It has no state and no
// goroutines; whoever compares many names bounds how many.
package nearname
