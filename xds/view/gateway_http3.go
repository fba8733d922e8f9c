package view

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// quicPrefix begins the names of listeners with QUIC, as in Istio.
const quicPrefix = "udp_"

// servesHTTP3 reports whether the servers of a route configuration take HTTP/3, too: those that end HTTPS
// and ask for no certificate of the client. Envoys up to 1.39 cannot ask for one over QUIC, so that a server
// with MUTUAL or ISTIO_MUTUAL, which Istio serves there, would take everybody. QUIC has TLS 1.3 only.
func (b *gatewayBuilder) servesHTTP3(routes string) bool {
	servers := b.merged.ByRoute[routes]
	if !b.sc.settings.QUICListeners || len(servers) == 0 {
		return false
	}
	s := servers[0] // an HTTPS server shares its routes with no other
	if !s.EndsHTTPS() || s.GetTls().GetMode() != networking.ServerTLSSettings_SIMPLE || isUnix(s.GetBind()) {
		return false
	}
	newest := s.GetTls().GetMaxProtocolVersion()
	return newest == networking.ServerTLSSettings_TLS_AUTO || newest == networking.ServerTLSSettings_TLSV1_3
}

// http3Chain is the chain for HTTP/3 beside a chain for HTTPS: the same server, routes and policies.
func http3Chain(c *FilterChain) *FilterChain {
	out, http := *c, *c.HTTP
	if rest, ok := strings.CutPrefix(http.StatPrefix, gatewayStats); ok && strings.HasSuffix(rest, ";") { // no name of the server's
		http.StatPrefix = gatewayStats + quicPrefix + rest
	}
	out.HTTP, out.Match.ServerNames, out.Match.Transport = &http, slices.Clone(c.Match.ServerNames), ""
	return &out
}
