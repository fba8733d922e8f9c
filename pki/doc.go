// Package pki is the certificate authority of a mesh. It keeps the signing key, signs
// only what pki/profile accepts, checks its own output before it returns it, and gives
// the control plane its identity and TLS settings.
//
// It does not decide who gets a certificate: pki/issue does, from what
// the records of pki/attest. The caller is the composition of the control plane,
// which makes one Authority and passes it to pki/issue.
//
// The state directory of the authority:
//
//	lock         held while a server runs: a second one is refused
//	current.pem  certificate and key of the slot that signs, one file, 0600
//	bundle.pem   the roots, public, made from the slots
//	hosts/       what hosts are entitled to (pki/attest)
//	tokens/      join tokens, as hashes (pki/attest/jointoken)
//
// A slot is one file, so that no crash can separate a key from its certificate. An
// authority is made only if the directory is empty. If there is anything else than
// current.pem, the authority has been in use, hosts trust it, and a new one would lock
// out all of them. The slots `next` and `old` of a rotation will be beside `current`.
//
// Nothing here has a goroutine: the server's certificate is renewed by the
// handshake that finds it half used. All methods may be called concurrently.
package pki
