// Package agent runs beside an application. It makes a machine a host of the mesh by a join
// token, and serves one workload's Envoy.
//
// It does this in order. It joins once and keeps the host's identity. It requests the
// workload's certificate with the host's, and renews both at half of their life. It serves the
// secrets (package workload) and the configuration (package relay) to Envoy. It writes the
// bootstrap and runs Envoy (package proxy). It probes the application (package health). If the
// control plane is unreachable, everything starts from the state directory.
//
// If the agent is stopped, it reports Envoy as absent, drains it and stops it. If the agent is
// killed or fails, Envoy keeps serving, and the next agent takes it over.
//
// The caller is cmd/fairlead, which makes flags into a Config and shows Status. New starts
// nothing; Run owns all goroutines and returns after the last. Status and ConfigDump may be
// called from any goroutine.
package agent
