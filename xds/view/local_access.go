package view

import (
	"github.com/fairlead/fairlead/registry/mesh"
)

// localAccess is how applications on the proxy's host reach it without capture.
type localAccess struct {
	// httpProxyPort is the port, at 127.0.0.1, of the listener for applications that use an HTTP
	// proxy; 0 if there is none.
	httpProxyPort uint32
	// loopback means that each service with a virtual address has an address of its own on the
	// loopback interface: [Settings.LoopbackAddress].
	loopback bool
	// firstPort is the lowest port at which the proxy may listen; 0 if it may listen at any.
	firstPort uint32
}

// localAccessOf is MeshConfig's proxyHttpPort, and what the proxy says of its host.
func (mc *meshContext) localAccessOf(p *Proxy) localAccess {
	if p.Type == Router {
		return localAccess{}
	}
	out := localAccess{httpProxyPort: uint32(max(mc.config.GetProxyHttpPort(), 0)), loopback: p.Loopback && p.Interception == InterceptNone, firstPort: p.FirstPort}
	if p.HTTPProxyPort != 0 {
		out.httpProxyPort = p.HTTPProxyPort
	}
	return out
}

// httpProxyRoutes is the route configuration of the listener for applications that use an HTTP proxy
// (Istio's RDSHttpProxy, pilot/pkg/model/listener.go).
const httpProxyRoutes = "http_proxy"

// addHTTPProxy adds the listener for applications that use an HTTP proxy (Istio's buildHTTPProxy,
// pilot/pkg/networking/core/listener.go). Its routes are those of all ports of the first egress
// listener without a port; without such a listener there is none.
func (o *outboundListenerBuilder) addHTTPProxy() {
	port := o.sc.access.httpProxyPort
	if port == 0 || o.sc.egressFor(0, httpProxyRoutes) < 0 {
		return
	}
	t := servicePort{bind: localhost, bindToPort: true, port: mesh.Port{Number: port, Protocol: mesh.HTTPProxy}}
	chain := o.httpChain(t)
	chain.HTTP.RouteName = httpProxyRoutes
	key := listenerKey{Bind: localhost, Port: port}
	o.pending[key] = &pendingListener{key: key, bindToPort: true, protocol: mesh.HTTPProxy, chains: []*FilterChain{chain}}
}

// loopbackOf is the loopback address of a service's first virtual address; or nil.
func (s Settings) loopbackOf(svc *mesh.Service) []string {
	list := svc.Addresses
	if len(list) == 0 {
		list = svc.Allocated
	}
	for _, v := range list {
		if a, ok := s.LoopbackAddress(v); ok {
			return []string{a}
		}
	}
	return nil
}

// loopbackFor is the loopback address at which a port of a service has a listener of its own; empty
// if it has none.
func (o *outboundListenerBuilder) loopbackFor(t servicePort) string {
	if !t.bindToPort || t.egress.hasPort() || t.egress.spec.GetBind() != "" || o.sc.addressKindOf(t.svc.Service) != loopbackAddresses {
		return ""
	}
	return o.sc.addressesOf(t.svc.Service)[0]
}

// addressKind says which addresses of a service a proxy uses.
type addressKind uint8

const (
	ownAddresses       addressKind = iota // those that the service's manifest names
	allocatedAddresses                    // those that the control plane chose
	loopbackAddresses                     // one on the loopback interface
)

// of are the addresses of a service.
func (k addressKind) of(settings Settings, svc *mesh.Service) []string {
	switch k {
	case allocatedAddresses:
		return svc.Allocated
	case loopbackAddresses:
		return settings.loopbackOf(svc)
	case ownAddresses:
	}
	return svc.Addresses
}

// addressKindOf says which addresses of a service the proxy uses. Only a proxy that captures uses
// allocated ones: nothing else leads to them.
func (sc *sidecarScope) addressKindOf(svc *mesh.Service) addressKind {
	switch {
	case sc.access.loopback && sc.settings.loopbackOf(svc) != nil:
		return loopbackAddresses
	case sc.proxy.Interception != InterceptNone && len(svc.Addresses) == 0 && len(svc.Allocated) > 0:
		return allocatedAddresses
	default:
		return ownAddresses
	}
}

// addressesOf are the addresses by which the proxy's applications reach a service; maybe none.
func (sc *sidecarScope) addressesOf(svc *mesh.Service) []string {
	return sc.addressKindOf(svc).of(sc.settings, svc)
}
