// Package lab runs measurements: servers and fleets, each a process of its own,
// the changes that are made while they run, and what the kernel says of them.
//
// A fleet's process is this same program; it is told what to do by lines of JSON
// on its standard input, and answers on its standard output. There are no
// goroutines but those that wait for a process.
package lab
