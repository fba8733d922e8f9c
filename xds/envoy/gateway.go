package envoy

import (
	"slices"
	"strings"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// gatewayHTTP is what an HTTP connection manager of a gateway has besides: its clients are not in the
// mesh, so that it does not trust their headers (Istio's buildGatewayConnectionManager).
func gatewayHTTP(to *hcmv3.HttpConnectionManager, g *view.GatewayHTTP) {
	to.UseRemoteAddress, to.XffNumTrustedHops = wrapperspb.Bool(true), g.TrustedProxies
	to.RequestHeadersTimeout = durationpb.New(requestHeadersTimeout)
	to.ForwardClientCertDetails, to.SetCurrentClientCertDetails = hcmv3.HttpConnectionManager_SANITIZE_SET, nil
	if g.ForwardClientCert != meshconfig.ForwardClientCertDetails_UNDEFINED {
		to.ForwardClientCertDetails = forwardedClientCert(g.ForwardClientCert)
	}
	switch to.GetForwardClientCertDetails() {
	case hcmv3.HttpConnectionManager_APPEND_FORWARD, hcmv3.HttpConnectionManager_SANITIZE_SET:
		to.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
			Subject: wrapperspb.Bool(true), Cert: true, Dns: true, Uri: true,
		}
	default:
	}
}

// gatewayTLS ends TLS with the certificates of a server of a Gateway, or of a port of a Sidecar
// (Istio's BuildListenerTLSContext).
func gatewayTLS(g *view.GatewayTLS) *tlsv3.DownstreamTlsContext {
	s := g.Settings
	mutual := s.GetMode() == networking.ServerTLSSettings_MUTUAL
	ctx := &tlsv3.DownstreamTlsContext{
		CommonTlsContext:         &tlsv3.CommonTlsContext{TlsParams: gatewayParameters(s, g.Defaults), AlpnProtocols: []string{"h2", "http/1.1"}},
		RequireClientCertificate: wrapperspb.Bool(mutual),
	}
	if list := s.GetAlpnProtocols(); len(list) > 0 {
		ctx.CommonTlsContext.AlpnProtocols = list
	}
	verifies := mutual || s.GetMode() == networking.ServerTLSSettings_OPTIONAL_MUTUAL
	if verifies { // a resumed session presents no certificate: one that is revoked would live on
		ctx.SessionTicketKeysType = &tlsv3.DownstreamTlsContext_DisableStatelessSessionResumption{DisableStatelessSessionResumption: true}
		ctx.DisableStatefulSessionResumption = true
	}
	if names := credentialNames(s); len(names) > 0 {
		credentials(ctx.GetCommonTlsContext(), s, names, verifies)
	} else {
		certificateFiles(ctx.GetCommonTlsContext(), g, verifies)
	}
	return ctx
}

// gatewayParameters are the versions, curves and ciphers of a server, else those of MeshConfig, else Envoy's.
func gatewayParameters(s *networking.ServerTLSSettings, defaults *meshconfig.MeshConfig_TLSConfig) *tlsv3.TlsParameters {
	out := &tlsv3.TlsParameters{EcdhCurves: defaults.GetEcdhCurves(), CipherSuites: defaults.GetCipherSuites()}
	switch defaults.GetMinProtocolVersion() {
	case meshconfig.MeshConfig_TLSConfig_TLSV1_2:
		out.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_2
	case meshconfig.MeshConfig_TLSConfig_TLSV1_3:
		out.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_3
	case meshconfig.MeshConfig_TLSConfig_TLS_AUTO:
	}
	if v := s.GetMinProtocolVersion(); v != networking.ServerTLSSettings_TLS_AUTO {
		out.TlsMinimumProtocolVersion = tlsVersion(v)
	}
	if v := s.GetMaxProtocolVersion(); v != networking.ServerTLSSettings_TLS_AUTO {
		out.TlsMaximumProtocolVersion = tlsVersion(v)
	}
	if list := s.GetEcdhCurves(); len(list) > 0 {
		out.EcdhCurves = list
	}
	if list := knownCiphers(s.GetCipherSuites()); len(list) > 0 {
		out.CipherSuites = list
	}
	if proto.Equal(out, &tlsv3.TlsParameters{}) {
		return nil
	}
	return out
}

func tlsVersion(v networking.ServerTLSSettings_TLSProtocol) tlsv3.TlsParameters_TlsProtocol {
	switch v {
	case networking.ServerTLSSettings_TLSV1_0:
		return tlsv3.TlsParameters_TLSv1_0
	case networking.ServerTLSSettings_TLSV1_1:
		return tlsv3.TlsParameters_TLSv1_1
	case networking.ServerTLSSettings_TLSV1_2:
		return tlsv3.TlsParameters_TLSv1_2
	case networking.ServerTLSSettings_TLSV1_3:
		return tlsv3.TlsParameters_TLSv1_3
	case networking.ServerTLSSettings_TLS_AUTO:
	}
	return tlsv3.TlsParameters_TLS_AUTO
}

// knownCiphers leaves out cipher suites that Envoy does not know, as Istio does: Envoy would reject the
// listener.
func knownCiphers(list []string) []string {
	var out []string
	suites := mesh.CipherSuites()
	for _, name := range list {
		group := []string{name}
		if inner, ok := strings.CutPrefix(name, "["); ok && strings.HasSuffix(inner, "]") { // [A|B] are equal
			group = strings.Split(strings.TrimSuffix(inner, "]"), "|")
		}
		known := !slices.ContainsFunc(group, func(c string) bool { return !slices.Contains(suites, c) })
		if (known || name == "ALL") && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

func credentialNames(s *networking.ServerTLSSettings) []string {
	if list := s.GetCredentialNames(); len(list) > 0 {
		return list
	}
	if name := s.GetCredentialName(); name != "" {
		return []string{name}
	}
	return nil
}

// credentials gets certificates by the names of credentials.
func credentials(to *tlsv3.CommonTlsContext, s *networking.ServerTLSSettings, names []string, verifies bool) {
	for _, name := range names {
		to.TlsCertificateSdsSecretConfigs = append(to.TlsCertificateSdsSecretConfigs, credentialSecret(CredentialSecret(name)))
	}
	roots := CredentialRoots(names[0])
	if name := s.GetCaCertCredentialName(); name != "" {
		roots = CredentialRoots(strings.TrimSuffix(name, rootsSuffix))
	}
	// Without authorities no names either, as Istio has them: Envoy would reject the listener, with all
	// servers of its port.
	if verifies {
		combined(to, clientValidation(s), credentialSecret(roots))
	}
}

// clientValidation is what is asked of the certificates of clients, but for who signed them.
func clientValidation(s *networking.ServerTLSSettings) *tlsv3.CertificateValidationContext {
	out := &tlsv3.CertificateValidationContext{
		MatchTypedSubjectAltNames: exactMatchers(s.GetSubjectAltNames()),
		// Istio leaves these away beside certificates in files: more clients could connect than the Gateway says.
		VerifyCertificateSpki: s.GetVerifyCertificateSpki(), VerifyCertificateHash: s.GetVerifyCertificateHash(),
	}
	if s.GetInsecureSkipVerify().GetValue() {
		out.TrustChainVerification = tlsv3.CertificateValidationContext_ACCEPT_UNTRUSTED
	}
	return out
}

func combined(to *tlsv3.CommonTlsContext, validation *tlsv3.CertificateValidationContext, roots *tlsv3.SdsSecretConfig) {
	to.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext: validation, ValidationContextSdsSecretConfig: roots,
		},
	}
}

// certificateFiles has certificates that are in files of the host. The agent serves them. An older agent does
// not have all: Envoy reads those files itself, and rejects the listener if one is missing.
func certificateFiles(to *tlsv3.CommonTlsContext, g *view.GatewayTLS, verifies bool) {
	s, served := g.Settings, fileNames{g.FileSecrets, g.FileLists}
	pairs := [][2]string{{s.GetServerCertificate(), s.GetPrivateKey()}}
	if list := s.GetTlsCertificates(); len(list) > 0 {
		pairs = nil
		for _, c := range list {
			pairs = append(pairs, [2]string{c.GetServerCertificate(), c.GetPrivateKey()})
		}
	}
	for _, p := range pairs {
		if name := served.pair(p[0], p[1]); name != "" {
			to.TlsCertificateSdsSecretConfigs = append(to.TlsCertificateSdsSecretConfigs, credentialSecret(name))
			continue
		}
		to.TlsCertificates = append(to.TlsCertificates, &tlsv3.TlsCertificate{CertificateChain: fileSource(p[0]), PrivateKey: fileSource(p[1])})
	}
	if !verifies {
		return
	}
	validation := clientValidation(s)
	if file := s.GetCaCertificates(); file != systemName { // the roots of the machine verify no clients
		if name := served.roots(file, s.GetCaCrl()); name != "" {
			combined(to, validation, credentialSecret(name))
			return
		}
	}
	if crl := s.GetCaCrl(); crl != "" {
		validation.Crl = fileSource(crl)
	}
	validation.TrustedCa = fileSource(s.GetCaCertificates())
	to.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation}
}
