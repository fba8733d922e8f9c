// Package pki is the authority of a mesh: it keeps the key that signs, signs
// what pki/profile accepts and nothing else, checks its own output before it is
// handed out, and gives the control plane its identity and TLS settings.
//
// It does not decide who gets a certificate: pki/issue does, from what
// pki/attest has on record. The caller is the composition of the control plane,
// which makes one Authority and hands it to pki/issue.
//
// The state directory of the authority:
//
//	lock         held while a server runs: a second one is refused
//	current.pem  certificate and key of the slot that signs, one file, 0600
//	bundle.pem   the roots, public, made from the slots
//	hosts/       what hosts are entitled to (pki/attest)
//	tokens/      join tokens, as hashes (pki/attest/jointoken)
//
// A slot is one file, so that no crash can part a key from its certificate. The
// authority is made when the directory is empty, and only then: when anything
// but current.pem is there the authority has been in use, hosts believe it, and a
// new one in its place would lock all of them out. Slots `next` and `old` of a
// rotation have their places beside `current`.
//
// Nothing here has a goroutine: the server's certificate is renewed by the
// handshake that finds it half used. All methods may be called concurrently.
package pki
