// Package observability has tests only: a real Prometheus finds the hosts of a real mesh by the
// example's configuration, and every rule and dashboard has what it reads.
package observability
