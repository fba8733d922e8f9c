// Package gatewaynames looks up the names of gateways between networks (MeshNetworks).
//
// [Names.Want] says which names are wanted. [Names.Run] looks them up, again every half minute,
// and keeps the last good answers, also on disk: no answer, whatever the reason, is no reason to
// take a gateway away. [Names.Addresses] is what is in force. So every proxy has the same
// addresses, and what changes them can be seen: in the status, in metrics and in the log.
//
// Addresses that other hosts cannot connect to, such as those of the loopback interface, are left
// out of answers. Names, the addresses of each, lookups at a time and the time for each lookup are
// bounded.
//
// It is not for names of endpoints (resolution DNS), which Envoy looks up on its own host.
//
// Goroutines: one owns all state and decides; up to a bound of others look up. All end with Run.
// What others get is immutable, through an atomic pointer; [Names.Changed] says that there is
// something new.
package gatewaynames
