// Package credential reads certificates, keys and authorities that Gateways and
// DestinationRules name by credentialName: folders below one directory of the host. It checks
// them, so that an Envoy never gets what it would reject: its rejection could keep other servers
// of the same listener closed.
//
// The names of secrets and of files are Istio's. A key is never in an error, in a log or in a
// status.
//
// It decides nothing about what is served while a folder cannot be used, and watches nothing;
// package agent/workload does. It has no goroutines and no state.
package credential
