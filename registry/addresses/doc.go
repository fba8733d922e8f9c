// Package addresses chooses virtual addresses for hosts that have none of their own, so that
// applications can connect to a host that packet capture is to recognize.
//
// An IPv6 address is a hash of the host's namespace and name. There are few IPv4 addresses,
// so the hash is only where the search for a free one begins. Who has an address keeps it:
// the [Table] is saved, and what it says of other hosts never moves one. Servers that share
// nothing agree on all hosts but those whose allocation says that it is Moved.
//
// A Table is a value of one goroutine. The package reads no clock and writes no file.
package addresses
