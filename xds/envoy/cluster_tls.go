package envoy

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/xds/view"
)

// systemRoots is where Debian keeps the public root certificates.
const systemRoots = "/etc/ssl/certs/ca-certificates.crt"

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
		b.c.TransportSocket = socket(tlsSocket, pack(b.originateTLS(tls)))
	case networking.ClientTLSSettings_DISABLE, networking.ClientTLSSettings_ISTIO_MUTUAL:
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
		}},
	}
	validation := &tlsv3.CertificateValidationContext{}
	if !insecure {
		root := tls.GetCaCertificates()
		if root == "" || root == "system" {
			root = systemRoots
		}
		validation.TrustedCa = fileSource(root)
		validation.MatchTypedSubjectAltNames = exactMatchers(names)
		if crl := tls.GetCaCrl(); crl != "" {
			validation.Crl = fileSource(crl)
		}
	}
	ctx.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation}
	if tls.GetMode() == networking.ClientTLSSettings_MUTUAL {
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

func fileSource(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}
