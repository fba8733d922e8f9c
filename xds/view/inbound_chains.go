package view

import (
	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// endTLS has the port of an ingress listener end TLS with certificates of its own. As in Istio, that is
// so only without mTLS of the mesh; with it, the protocol is still the one inside TLS.
func (in *inboundBuilder) endTLS(p *inboundPort, s *networking.ServerTLSSettings) {
	if s == nil {
		return
	}
	switch p.Protocol {
	case mesh.HTTPS:
		p.Protocol = mesh.HTTP
	case mesh.TLS:
		p.Protocol = mesh.TCP
	default:
	}
	if len(s.GetVerifyCertificateSpki()) > 0 || len(s.GetVerifyCertificateHash()) > 0 || s.GetCaCertCredentialName() != "" {
		s = proto.CloneOf(s) // they have no effect here, as in Istio
		s.VerifyCertificateSpki, s.VerifyCertificateHash, s.CaCertCredentialName = nil, nil, ""
	}
	if in.modeAt(p.Number) == mesh.Disable {
		p.TLS = &GatewayTLS{Settings: s, Defaults: in.st.config.GetTlsDefaults(), FileSecrets: in.st.upstream.fileSecrets, FileLists: in.st.upstream.fileLists}
	}
}

func (in *inboundInput) chains(mc *meshContext, p inboundPort) []*FilterChain {
	to := ClusterRef{Kind: InboundCluster, Port: p.Number}
	chain := func() *FilterChain {
		return &FilterChain{
			Name: listenerName(p.Bind, p.Number), Match: FilterChainMatch{DestinationPort: p.Number},
			Deny: in.Deny, Authorization: in.Authorization,
		}
	}
	asTCP := func() *FilterChain {
		c := chain()
		c.TCP = &TCPProxy{StatPrefix: statPrefix(to), Destinations: []WeightedCluster{{Cluster: to}}}
		return c
	}
	asHTTP := func(c *FilterChain) {
		in.serveHTTP(c, mc.httpChain("inbound_"+c.Name, in.Headers))
		c.HTTP.GRPCWeb = p.Protocol == mesh.GRPCWeb
		c.HTTP.Inbound = &InboundRoute{
			Cluster: to, Operation: p.Operation, Retry: p.Protocol != mesh.GRPC && p.Protocol != mesh.GRPCWeb,
			Retries: mc.config.GetDefaultInboundHttpRetryPolicy(),
		}
	}
	switch mode := in.modeAt(p.Number); {
	case p.Protocol == mesh.Undeclared:
		return in.sniffedChains(mc, mode, asTCP, asHTTP)
	case p.TLS != nil:
		c := asTCP()
		if p.Protocol.IsHTTP() {
			c.TCP = nil
			asHTTP(c)
		}
		c.Match.Transport, c.Gateway = transportTLS, p.TLS
		return []*FilterChain{c}
	case p.Protocol.IsHTTP():
		return in.modeChains(mc, mode, true, func() *FilterChain {
			c := chain()
			asHTTP(c)
			return c
		})
	default:
		return in.modeChains(mc, mode, false, asTCP)
	}
}

// sniffedChains are the chains of a port without a declared protocol, as in Istio: HTTP for
// what is HTTP in plaintext, and for mTLS whose client says by ALPN that it is HTTP. All else is
// TCP, and so are clients that say nothing, such as those of earlier releases.
func (in *inboundInput) sniffedChains(mc *meshContext, mode mesh.MTLSMode, asTCP func() *FilterChain, asHTTP func(*FilterChain)) []*FilterChain {
	chains := in.modeChains(mc, mode, false, asTCP)
	http := func(transport string, alpn []string) {
		c := asTCP()
		c.TCP, c.Match.Transport, c.Match.ALPN = nil, transport, alpn
		asHTTP(c)
		if transport == transportTLS {
			c.TLS = mc.serverTLS(true)
		}
		chains = append(chains, c)
	}
	switch mode {
	case mesh.Disable:
		// Once a chain names a transport, Envoy looks for plaintext only among those that do.
		plain := asTCP()
		plain.Match.Transport = transportRawBuffer
		chains = append(chains, plain)
		http(transportRawBuffer, plaintextALPN())
	case mesh.Permissive:
		chains[0].Match.ALPN = istioTCP()
		http(transportTLS, istioHTTP())
		http(transportRawBuffer, plaintextALPN())
	default:
		http(transportTLS, istioHTTP())
	}
	return chains
}

func (mc *meshContext) serverTLS(http bool) *ServerTLS {
	m := mc.config.GetMeshMTLS()
	return &ServerTLS{
		HTTP: http, TrustDomains: mc.trustDomains, MaxAge: mc.settings.serverAge(http),
		TLS13: m.GetMinProtocolVersion() == meshconfig.MeshConfig_TLSConfig_TLSV1_3, CipherSuites: m.GetCipherSuites(),
	}
}

// modeChains returns the filter chains for an mTLS mode. STRICT has mTLS only. PERMISSIVE
// recognizes mTLS of the mesh by the offered ALPN protocols; TLS of the application itself
// is forwarded unchanged.
func (in *inboundInput) modeChains(mc *meshContext, mode mesh.MTLSMode, http bool, build func() *FilterChain) []*FilterChain {
	mtls := build()
	mtls.Match.Transport = transportTLS
	mtls.TLS = mc.serverTLS(http)
	plain := build()
	switch mode {
	case mesh.Strict:
		return []*FilterChain{mtls}
	case mesh.Permissive:
		mtls.Match.ALPN = istioALPN()
		plain.Match.Transport = transportRawBuffer
		if http {
			return []*FilterChain{mtls, plain}
		}
		other := build()
		other.Match.Transport = transportTLS
		return []*FilterChain{mtls, other, plain}
	case mesh.Disable:
		return []*FilterChain{plain}
	default:
		return []*FilterChain{mtls}
	}
}
