// Package observability has the example's test: promtool checks the configuration and the alerts,
// and each alert fires for each of its reasons.
//
// Nobody imports it. prometheus.yml and alerts.yml are for people to copy.
package observability
