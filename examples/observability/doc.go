// Package observability has the example's tests: promtool checks the configuration and the alerts,
// and each alert fires for each of its reasons. Its tests also write the dashboards.
//
// Nobody imports it. prometheus.yml, alerts.yml and dashboards are for people to copy.
package observability
