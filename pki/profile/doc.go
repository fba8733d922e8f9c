// Package profile defines the certificates of this mesh, and which certificates, certificate
// requests and names are accepted. The content of a certificate (Leaf.Template) and the
// requirements (Check, Verify) are in one package, so that nothing is issued that would not be
// accepted.
//
// A leaf is an X509-SVID: one URI SAN, leaf key usage, client and server authentication, no
// CA. There are four kinds. A private, non-critical extension has the kind, and the binding
// under which the host was entitled when the certificate was issued:
//
//   - Host, spiffe://TD/fairlead/host/NAME: the result of attestation. It may renew
//     itself, request the workload identities of its entitlement, and open streams.
//   - Direct, spiffe://TD/ns/NS/sa/SA for a client without a host identity. It
//     may renew itself and open streams as itself.
//   - Impersonated, spiffe://TD/ns/NS/sa/SA requested by a host. It is valid for
//     traffic only: it neither renews nor opens streams.
//   - ControlPlane, exactly spiffe://TD/ns/istio-system/sa/fairlead.
//
// The extension distinguishes Direct and Impersonated, which have equal names, without a list
// of serial numbers on the server: this works after a restart, after a lost state directory
// and on another server. It is signed with the certificate, so a host cannot remove it. The
// binding is a random number, not the host's name: a peer in the mesh learns nothing about the
// host from it. The control plane accepts no certificate without the extension.
//
// The subject of a workload's certificate has its name ([WorkloadName]), for metrics. It proves
// nothing, and nothing here checks it.
//
// The control plane's account, and every path under /fairlead/ except a host's own, are
// reserved: no constructor here makes them for others.
//
// The callers are pki, its children, and through pki/svid the agent. All of it is pure: no
// clock, no I/O, no goroutine.
package profile
