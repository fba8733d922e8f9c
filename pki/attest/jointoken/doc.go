// Package jointoken is the proof of a host by a token that a person carried to
// it. It makes tokens, keeps what may be kept of them (the hash of the secret,
// and what it entitles to), and redeems them.
//
// A token is bound at its first use to the public key of the certificate request
// that came with it, on the disk before anything is signed. The same key may
// redeem it again for 10 minutes, because an answer can be lost or the server
// killed between; any other key never may.
//
// It does not know which hosts exist, and signs nothing: pki/attest, its only
// caller, decides whether a name may be taken, and remembers the host when the
// token is long gone. Nothing here has a goroutine. All methods may be called
// concurrently; of two that redeem one token with two keys one wins.
package jointoken
