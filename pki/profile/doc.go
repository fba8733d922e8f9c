// Package profile says what the certificates of this mesh look like, and what
// of a certificate, a certificate request or a name is accepted. What is put
// into a certificate (Leaf.Template) and what is required of one (Check, Verify)
// stand side by side, so that nothing is issued which would not be accepted.
//
// A leaf is an X509-SVID: one URI SAN, leaf key usage, client and server
// authentication, no CA. There are four kinds, and which one a certificate is of
// stands in a private, non-critical extension, beside the binding under which
// the host was entitled when it was issued:
//
//   - Host, spiffe://TD/fairlead/host/NAME: what attestation gives. It may renew
//     itself, ask for the workload identities of its entitlement, and stream.
//   - Direct, spiffe://TD/ns/NS/sa/SA for a client without a host identity. It
//     may renew itself and stream as itself.
//   - Impersonated, spiffe://TD/ns/NS/sa/SA asked for by a host. It is good for
//     traffic only: it neither renews nor streams.
//   - ControlPlane, exactly spiffe://TD/ns/istio-system/sa/fairlead.
//
// The extension makes the difference between Direct and Impersonated, which have
// equal names, without a list of serial numbers on the server: it survives
// restarts, a lost state directory and another server. Its value is signed with
// the certificate, so a host cannot remove it. The binding is a random number,
// not the host's name: a peer in the mesh learns nothing about the host from it.
// A certificate without the extension is of no kind and authenticates nobody to
// the control plane.
//
// The control plane's account and every path under /fairlead/ but a host's own
// are reserved: no constructor here makes them for anyone else.
//
// The callers are pki, its children, and through pki/svid the agent. All of it
// is pure: no clock, no I/O, no goroutine.
package profile
