package envoy

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// systemName is the name of the public root certificates in a DestinationRule, and
// systemRoots is where Debian keeps them. An agent knows where its own host does.
const (
	systemName  = "system"
	systemRoots = "/etc/ssl/certs/ca-certificates.crt"
)

// proxySocket is what Envoy calls the PROXY protocol around another transport socket.
const proxySocket = "envoy.transport_sockets.upstream_proxy_protocol"

func socket(name string, config *anypb.Any) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: name, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: config}}
}

// transportSocket is mTLS of the mesh, chosen for each endpoint if it is automatic; or TLS
// of a DestinationRule; or plaintext.
func (b *clusterBuilder) transportSocket() {
	if t := b.p.TLS; t != nil {
		b.c.TransportSocket = b.meshSocket(t)
		if t.Auto && b.p.Discovery != view.DiscoverOriginalDst {
			b.c.TransportSocketMatches = plaintextSocket()
		}
		return
	}
	tls := b.p.Policy.GetTls()
	switch tls.GetMode() {
	case networking.ClientTLSSettings_SIMPLE, networking.ClientTLSSettings_MUTUAL:
		if tls.GetCredentialName() == mesh.RefusedCredential {
			b.c.TransportSocket = refusingSocket()
			return
		}
		b.c.TransportSocket = socket(tlsSocket, pack(b.originateTLS(tls)))
	case networking.ClientTLSSettings_DISABLE, networking.ClientTLSSettings_ISTIO_MUTUAL:
	}
}

// nobodysKey is the SHA-256 of no public key.
var nobodysKey = base64.StdEncoding.EncodeToString(make([]byte, sha256.Size)) //nolint:gochecknoglobals // a constant

// refusingSocket fails each TLS handshake, whoever the server is, before anything is sent. It presents no
// certificate, and waits for no secret.
func refusingSocket() *corev3.TransportSocket {
	return socket(tlsSocket, pack(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{
			ValidationContext: &tlsv3.CertificateValidationContext{VerifyCertificateSpki: []string{nobodysKey}},
		},
	}}))
}

// proxyProtocol has each connection begin with the PROXY protocol, before all TLS, where a
// DestinationRule asks for it.
func (b *clusterBuilder) proxyProtocol() {
	in := b.p.Policy.GetProxyProtocol()
	if in == nil {
		return
	}
	version := corev3.ProxyProtocolConfig_V1
	if in.GetVersion() == networking.TrafficPolicy_ProxyProtocol_V2 {
		version = corev3.ProxyProtocolConfig_V2
	}
	within := func(s *corev3.TransportSocket) *corev3.TransportSocket {
		return socket(proxySocket, pack(&proxyprotocolv3.ProxyProtocolUpstreamTransport{
			Config: &corev3.ProxyProtocolConfig{Version: version}, TransportSocket: s,
		}))
	}
	if b.c.GetTransportSocket() == nil {
		b.c.TransportSocket = socket(rawSocket, pack(&rawv3.RawBuffer{}))
	}
	b.c.TransportSocket = within(b.c.GetTransportSocket())
	matches := b.c.GetTransportSocketMatches()
	b.c.TransportSocketMatches = nil // they are shared
	for _, m := range matches {
		b.c.TransportSocketMatches = append(b.c.TransportSocketMatches, &clusterv3.Cluster_TransportSocketMatch{
			Name: m.GetName(), Match: m.GetMatch(), TransportSocket: within(m.GetTransportSocket()),
		})
	}
}

// meshSocket presents the proxy's identity, and verifies the server's. It offers ALPN
// "istio", by which the server tells mTLS of the mesh from TLS of the application.
func (b *clusterBuilder) meshSocket(t *view.PeerTLS) *corev3.TransportSocket {
	ctx := &tlsv3.UpstreamTlsContext{
		CommonTlsContext: commonTLSContext(peerMatchers(t.Names, t.TrustDomains)), Sni: t.SNI,
		// No session resumption: the server would not present its certificate again.
		MaxSessionKeys: wrapperspb.UInt32(0),
	}
	ctx.CommonTlsContext.AlpnProtocols = []string{"istio"}
	if b.isHTTP2() {
		ctx.CommonTlsContext.AlpnProtocols = []string{"istio", "h2"}
	}
	if t.SNI == "" {
		b.autoSNI()
	}
	return socket(tlsSocket, pack(ctx))
}

// originateTLS is TLS that a DestinationRule asks for. As in Istio, a server with accounts in
// the mesh has to present one of them, unless the rule names others.
func (b *clusterBuilder) originateTLS(tls *networking.ClientTLSSettings) *tlsv3.UpstreamTlsContext {
	names := tls.GetSubjectAltNames()
	if len(names) == 0 {
		names = b.p.AltNames
	}
	insecure := tls.GetInsecureSkipVerify().GetValue()
	ctx := &tlsv3.UpstreamTlsContext{
		Sni: tls.GetSni(),
		CommonTlsContext: &tlsv3.CommonTlsContext{TlsParams: &tlsv3.TlsParameters{
			TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
			TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
			EcdhCurves:                b.p.Defaults.ECDHCurves,
			CipherSuites:              b.p.Defaults.CipherSuites,
		}},
	}
	validation := &tlsv3.CertificateValidationContext{}
	var roots string // the name of a secret, or empty
	if !insecure {
		file := tls.GetCaCertificates()
		if file == "" || file == systemName {
			file = systemRoots
		}
		switch roots = b.rootSecret(tls); {
		case tls.GetCredentialName() != "":
		case roots == "":
			validation.TrustedCa = fileSource(file)
		}
		validation.MatchTypedSubjectAltNames = exactMatchers(names)
		if crl := tls.GetCaCrl(); crl != "" && (roots == "" || tls.GetCredentialName() != "") {
			validation.Crl = fileSource(crl)
		}
	}
	ctx.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation}
	switch {
	case tls.GetCredentialName() != "":
		b.credential(ctx.CommonTlsContext, tls, validation)
	case roots != "":
		ctx.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: validation, ValidationContextSdsSecretConfig: fileSecret(roots),
			},
		}
	}
	switch name := b.pairSecret(tls); {
	case tls.GetMode() != networking.ClientTLSSettings_MUTUAL, tls.GetCredentialName() != "":
	case name != "":
		ctx.CommonTlsContext.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{fileSecret(name)}
	default:
		ctx.CommonTlsContext.TlsCertificates = []*tlsv3.TlsCertificate{{
			CertificateChain: fileSource(tls.GetClientCertificate()),
			PrivateKey:       fileSource(tls.GetPrivateKey()),
		}}
	}
	if b.isHTTP2() {
		ctx.CommonTlsContext.AlpnProtocols = []string{"h2"}
	}
	if tls.GetSni() == "" {
		// Besides the names of the service, which need not be those of the server.
		up := &corev3.UpstreamHttpProtocolOptions{AutoSni: true, AutoSanValidation: !insecure && len(tls.GetSubjectAltNames()) == 0}
		b.options().UpstreamHttpProtocolOptions = up
	}
	return ctx
}

// credential has Envoy get the authorities of a credential, and its certificate for MUTUAL, from the
// agent. As in Istio, the roots of the machine are never in their place.
func (b *clusterBuilder) credential(to *tlsv3.CommonTlsContext, tls *networking.ClientTLSSettings, validation *tlsv3.CertificateValidationContext) {
	if tls.GetMode() == networking.ClientTLSSettings_MUTUAL {
		to.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{credentialSecret(CredentialSecret(tls.GetCredentialName()))}
	}
	to.ValidationContextType = nil
	if !tls.GetInsecureSkipVerify().GetValue() {
		to.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: validation, ValidationContextSdsSecretConfig: credentialSecret(CredentialRoots(tls.GetCredentialName())),
			},
		}
	}
}

// rootSecret is the name of the secret with the roots, as in Istio; empty if Envoy reads the
// file itself. Beside a list of revoked certificates it does so where an agent cannot check the list: if
// Envoy cannot read that, it rejects the secret for all clusters that use it, and not this cluster alone.
func (b *clusterBuilder) rootSecret(tls *networking.ClientTLSSettings) string {
	return b.served().roots(cmp.Or(tls.GetCaCertificates(), systemName), tls.GetCaCrl())
}

// pairSecret is the name of the secret with the client's certificate; empty if Envoy reads the files itself.
func (b *clusterBuilder) pairSecret(tls *networking.ClientTLSSettings) string {
	return b.served().pair(tls.GetClientCertificate(), tls.GetPrivateKey())
}

func (b *clusterBuilder) served() fileNames { return fileNames{b.p.FileSecrets, b.p.FileLists} }

// fileSecretWait is how long a cluster waits for a file. Envoy starts nothing before all its
// clusters are there, and a file that does not exist must not keep it from starting.
const fileSecretWait = 5 * time.Second

// fileSecret requests a secret that the agent reads from files.
func fileSecret(name string) *tlsv3.SdsSecretConfig {
	out := secret(name)
	out.SdsConfig.InitialFetchTimeout = durationpb.New(fileSecretWait)
	return out
}

func fileSource(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}
