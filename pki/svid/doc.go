// Package svid is the workload side of pki: it gets, stores and renews the identities of a
// host. It has the join token in the form that people copy (JoinToken), the client of the
// signing API (Client, Join), the schedule of renewals (RenewAt), the files of the host's
// identity (HostStore) and of its workloads' (SealedStore), and the TLS settings that accept
// only the control plane (ClientTLS).
//
// It is not the authority and does not know entitlements: it sends requests, and checks the
// answers. It never stores a workload's key unsealed, and a key never leaves the host.
//
// The callers are agent and its children; pki/attest/jointoken and the commands use JoinToken.
// Nothing here keeps a goroutine after a call; every value is safe for concurrent use, stores
// included.
//
// A host keeps its key when it renews: the key seals the workloads' identities, and by it the
// server accepts a host whose certificate expired while it was off. A new key needs a new join
// token.
package svid
