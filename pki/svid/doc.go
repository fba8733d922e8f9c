// Package svid is the workload side of pki: what a host needs to get, keep and
// renew identities. It has the join token as a person copies it (JoinToken), the
// client of the signing API (Client, Join), the schedule (RenewAt), the files of
// the host's identity (HostStore) and of its workloads' (SealedStore), and the
// TLS settings that accept the control plane and nobody else (ClientTLS).
//
// It is not the authority and knows nothing of what a host is entitled to: it
// asks, and checks the answer. It never keeps a workload's key on a disk
// unsealed, and a key never leaves the host.
//
// The callers are agent and its children; pki/attest/jointoken and the commands
// use JoinToken. Nothing here keeps a goroutine beyond a call; every value is
// safe for concurrent use, stores included.
//
// A host keeps its key when it renews: the key seals the workloads' identities,
// and the server remembers it to let a host back in whose certificate ended
// while it was off. A new key comes with a new join token.
package svid
