package view

import "github.com/fairlead/fairlead/registry/mesh"

// forwardsByName reports whether requests or connections at the port name the host that is looked up for them.
func forwardsByName(p mesh.Port) bool {
	switch p.Protocol { // those that Istio takes
	case mesh.HTTP, mesh.HTTP2, mesh.GRPC, mesh.TLS:
		return true
	default:
		return false
	}
}

// lookUpServerName has the server name of a connection looked up if the TCP proxy leads to a service that
// needs it.
func (o *outboundListenerBuilder) lookUpServerName(tcp *TCPProxy, host mesh.Hostname) {
	svc := o.sc.find(host)
	if svc == nil || svc.Resolution != mesh.ResolutionDynamicDNS || len(tcp.Destinations) != 1 || o.sc.proxy.Type == Router {
		return
	}
	tcp.LookUp, tcp.LookUpFamily = tcp.Destinations[0].Cluster.Port, o.sc.upstream.lookup
}
