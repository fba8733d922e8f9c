// Package consultest runs real Consuls in tests: one server, or a cluster of
// three, with or without ACLs and TLS, and lets happen to them what happens to
// Consul: servers killed, data lost and restored, the network to them cut.
//
// Without a binary a test is skipped with the reason, unless FAIRLEAD_E2E=1 is
// set, as `make test` does: then it fails. Every Consul has loopback addresses of
// its own, so that those of tests that run at once do not meet, and ends with its
// test, by its process id. Whatever waits polls, because the other side is a
// process.
package consultest
