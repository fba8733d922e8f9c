// Package health probes the application beside an Envoy and reports changes of its health.
// Probes are Istio's ReadinessProbe, over HTTP or TCP, with its defaults; an application is
// healthy only behind an Envoy that is ready.
//
// A killed application is noticed before its next probe: several times a second the kernel is
// asked whether the application's socket still listens, and after a change a probe follows at
// once.
//
// It reports to a Reporter, in production to package relay, which keeps the newest report and
// sends it to every server that it connects to. It does not replace Envoy's own health checks
// of other hosts.
//
// New starts nothing; Run probes on the caller's goroutine.
package health
