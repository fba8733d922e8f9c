// Package health probes the application beside an Envoy and says when its health
// changes. Probes are Istio's ReadinessProbe, over HTTP or TCP, with its
// defaults; an application is healthy only behind an Envoy that is ready.
//
// A killed application does not wait for its next probe: ten times a second the
// kernel is asked whether its socket still listens, and a change is probed at
// once.
//
// It reports to whoever it is given, package relay in the end, which keeps the
// newest word and repeats it to every server that it reaches. It is not Envoy's
// own health checking of other hosts.
//
// New starts nothing; Run probes on the caller's goroutine.
package health
