package view

import (
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// GatewayHTTP is what an HTTP connection manager of a gateway has besides.
type GatewayHTTP struct {
	// TrustedProxies is how many proxies before the gateway are believed what they say of the client.
	TrustedProxies uint32
	// ForwardClientCert is what becomes of the header x-forwarded-client-cert.
	ForwardClientCert meshconfig.ForwardClientCertDetails
}

// GatewayTLS is TLS that a server of a Gateway, or an ingress listener of a Sidecar, ends with
// certificates of its own.
type GatewayTLS struct {
	Settings *networking.ServerTLSSettings
	// Defaults are MeshConfig's tlsDefaults; or nil.
	Defaults *meshconfig.MeshConfig_TLSConfig
	// FileSecrets gets certificates in files from the agent.
	FileSecrets bool
	// FileLists has these beside lists of revoked certificates, and in files of any path.
	FileLists bool
}
