// Package otelcoltest runs real OpenTelemetry Collectors in tests, and reads what they received by
// OTLP: traces, logs and metrics. `make tools` installs the Collector.
package otelcoltest
