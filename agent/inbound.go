package agent

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
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
	switch {
	case strings.Contains(reason, "Address already in use"):
		return "stop the process that has the port (`ss -ltnp` as root names it), or give the object another port; Envoy tries again within a minute"
	case strings.Contains(reason, "cannot bind '"):
		return "give this host the address, or the object another one; Envoy tries again within a minute"
	case strings.Contains(reason, "unable to open file '"):
		return "make the directory of that file, writable for Envoy's user; Envoy tries again within a minute"
	default:
		return "`fairlead proxy-status` on the server names the objects"
	}
}
