// Package jointoken proves a host by a token that a person copied to it. It makes tokens,
// stores what may be stored of them (the hash of the secret, and the entitlement), and redeems
// them.
//
// At its first use a token is bound to the public key of the certificate request, on disk
// before anything is signed. The same key may redeem it again for 10 minutes, because an
// answer can be lost or the server killed in between; another key never can.
//
// It does not know which hosts exist, and signs nothing: pki/attest, its only caller, decides
// whether a name may be taken, and has the record of the host after the token has expired.
// Nothing here has a goroutine. All methods may be called concurrently; if two keys redeem one
// token, one of them succeeds.
package jointoken
