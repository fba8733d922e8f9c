// Package dns answers the DNS queries of the applications of a host: names of the mesh itself, and
// all others by asking the host's upstreams.
//
// A [Table] has what the control plane says of each host name that the workload sees. The relay
// fills it (agent/relay, NameTable). A [Server] listens at loopback addresses only, by UDP and TCP.
// It answers A, AAAA and SRV queries for names of the table, and PTR queries for virtual addresses
// that nobody else can own. It never says that a name does not exist: whatever is not in the table
// is forwarded to the nameservers of resolv.conf, and their answer is passed on. Before there is a
// table, negative answers of theirs are not, because the name may be one of the mesh.
//
// Queries that come back from an upstream (a loop) are found by probes with random names. An upstream
// that sends them back is left out until it does not any more.
//
// Everything that a client or an upstream can make grow is bounded: queries that are forwarded at one
// time, connections, sizes, time. Of too many queries, the one that has waited longest makes room. The
// nameservers get the time that the host's resolver would give them. No query makes a log line.
//
// New starts nothing. Run owns all goroutines: one listener each for UDP and TCP at each address, one
// that watches resolv.conf and probes, one for each query, and one for each nameserver that it asks. Table, Status and Collect may be used
// by any goroutine.
package dns
