// Package capture has end-to-end tests of packet capture on a host: the real service with only its
// capability, a real agent and its Envoy as a user of their own, and unmodified programs, in network
// namespaces of this machine. They need root.
package capture
