// Package issue is the signing API: Istio's
// istio.v1.auth.IstioCertificateService/CreateCertificate, on the gRPC server of
// port 15012. It authenticates the caller, decides by the caller's entitlement
// which identity the certificate names, has the authority sign, and writes one
// audit line. It also authenticates the clients of xDS streams (Authenticate).
//
// A caller proves itself by a join token (authorization: Bearer ...) or by a
// certificate of this mesh on the connection:
//
//	join token                        the host's identity, or the direct client's
//	host certificate                  its own renewal
//	host certificate, with Istio's    a workload identity of its entitlement
//	  ImpersonatedIdentity metadata
//	direct certificate                its own renewal
//	impersonated certificate          nothing
//
// A host whose certificate has expired may still renew it, and nothing else, if its
// record exists, the certificate's key is one of the last that were certified for it,
// and RenewExpired has not passed: a host that was off for a month comes back without
// a person. Removing the host ends that, too.
//
// Of the certificate request only the key is used. The caller learns that it was
// rejected; the reason is in the log, and in Refusals.
//
// It makes no certificate itself and keeps no state but counters: the authority
// and pki/attest do. The caller is the composition of the control plane. Nothing
// here has a goroutine; gRPC calls it concurrently.
package issue
