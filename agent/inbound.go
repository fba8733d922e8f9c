package agent

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/xds/stream"
)

// takesRequests reports whether a listener, encoded, takes requests for the workload: the listeners of
// a Sidecar's ingress do, and with packet capture virtualInbound, which the control plane sends only
// then.
func takesRequests(body []byte) bool {
	var l listenerv3.Listener
	return proto.Unmarshal(body, &l) == nil && l.GetTrafficDirection() == corev3.TrafficDirection_INBOUND
}

// cureOf says what a person does about a resource that Envoy rejects.
func cureOf(reason string) string {
	const again = "; Envoy tries again within a minute"
	switch stream.HostFaultOf(reason) {
	case stream.PortInUse:
		return "stop the process that has the port (`ss -ltnp` as root names it), or give the object another port" + again
	case stream.NoAddress:
		return "give this host the address, or the object another one" + again
	case stream.NotPermitted:
		return "give the object a port of 1024 or above, or have the agent and its Envoy run with CAP_NET_BIND_SERVICE, as the systemd unit does" + again
	case stream.OtherBind:
		return "repair what keeps Envoy from the address and port, or give the object others" + again
	case stream.NoFile:
		return "make the directory of that file, writable for Envoy's user" + again
	default:
		return "`fairlead proxy-status` on the server names the objects"
	}
}
