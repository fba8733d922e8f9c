// Package metrics makes what a host's Prometheus endpoint shows: metrics of requests and TCP
// connections with Istio's names and labels, Envoy's other statistics, the application's
// metrics and the agent's own.
//
// Stock Envoy counts requests with few labels, by its stats access logger, and TCP connections
// not at all as Istio does. The [Collector] reads Envoy's counters from the admin interface,
// and gets entries about connections (and, of Envoy 1.36, about requests) by Envoy's access log
// service. It completes the labels, and adds differences to counters of its own, so that a
// restart of Envoy and series that Envoy drops are not seen. What Envoy did not report it finds in
// the totals of the managers that its listeners have.
// The [Handler] merges the parts of the page, each limited in time and size.
//
// The package knows no configuration of the mesh: it does not decide what Envoy counts. Its
// caller is package agent. New starts nothing; Collector.Run owns the goroutines of the reader
// and of the access log service. All methods may be called from any goroutine.
package metrics
