// Package agent is what runs beside an application: it makes a host of the mesh
// out of a join token, and serves one workload's Envoy.
//
// In this order: it joins, once, and keeps the host's identity; asks with it for
// the workload's, and renews both at half of their life; serves the secrets to
// Envoy (package workload) and the configuration (package relay); writes the
// bootstrap and runs Envoy (package proxy); and probes the application (package
// health). With the control plane away everything starts from what is on disk.
//
// Envoy does not end with the agent, unless the agent is told to end: then peers
// are told first, and Envoy is drained and stopped. An agent that was killed, or
// that ends by a fault of its own, leaves Envoy serving, and the next one takes
// it over.
//
// The caller is cmd/fairlead, which makes flags into a Config and shows Status.
// New starts nothing; Run owns all goroutines and returns after the last. Status
// and ConfigDump may be called from any goroutine.
package agent
