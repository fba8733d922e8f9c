package envoy

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	quicv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/quic/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/xds/view"
)

// quicSocketName is a name for people, like tlsSocket.
const quicSocketName = "quic"

// listenQUIC has a listener take QUIC, over UDP (Istio's buildGatewayListener).
func listenQUIC(l *listenerv3.Listener) {
	l.GetAddress().GetSocketAddress().Protocol = corev3.SocketAddress_UDP
	l.UdpListenerConfig = &listenerv3.UdpListenerConfig{
		QuicOptions: &listenerv3.QuicProtocolOptions{}, DownstreamSocketConfig: &corev3.UdpSocketConfig{},
	}
}

// quicSocket ends the TLS of QUIC as a server of a Gateway ends that of TCP. Requests in the first flight of
// a resumed connection are not taken before its handshake: who records one could send it again.
func quicSocket(g *view.GatewayTLS) *corev3.TransportSocket {
	ctx := gatewayTLS(g)
	ctx.CommonTlsContext.AlpnProtocols = []string{"h3"}
	return socket(quicSocketName, pack(&quicv3.QuicDownstreamTransport{DownstreamTlsContext: ctx, EnableEarlyData: wrapperspb.Bool(false)}))
}

// announceHTTP3 tells clients that HTTP/3 is at the same port. They may remember it for a day, as in Istio.
func announceHTTP3(port uint32) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		AppendAction: corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD,
		Header:       &corev3.HeaderValue{Key: "alt-svc", Value: fmt.Sprintf("h3=\":%d\"; ma=86400", port)},
	}
}
