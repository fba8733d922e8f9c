// Package check finds what is wrong on one host: each check says what it found, and what to do.
//
// It changes nothing on the host, works while the agent runs and while it does not, and has no
// goroutines that outlive a call. What the agent itself knows to be wrong it asks the agent for. What it
// may not see, such as packet capture without root, it calls unknown.
package check
