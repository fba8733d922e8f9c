package view

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

// TestHTTP3BesideHTTPS has a server of each protocol and mode of TLS. Over UDP, there is a listener for HTTPS
// with mode SIMPLE and TLS 1.3 alone, and routes announce HTTP/3 where it is. Without the setting there is none.
func TestHTTP3BesideHTTPS(t *testing.T) {
	t.Parallel()
	type server struct{ protocol, tls, bind string }
	list := []server{
		{protocol: "HTTP"},
		{protocol: "HTTPS", tls: `"mode": "SIMPLE", "credentialName": "x", "maxProtocolVersion": "TLSV1_2"`},
		{protocol: "HTTPS", tls: `"mode": "SIMPLE", "credentialName": "x"`, bind: "unix:///run/x.sock"},
	}
	for mode := range networking.ServerTLSSettings_TLSmode_value {
		for _, protocol := range []string{"HTTPS", "TLS"} {
			list = append(list, server{protocol: protocol, tls: fmt.Sprintf(`"mode": %q, "credentialName": "x"`, mode)})
		}
	}
	for _, s := range list {
		w := newMeshFixture(t)
		w.service("shop", "web.mesh", 80)
		w.gateway("a", fmt.Sprintf(`{"selector": {"edge": "a"}, "servers": [{"port": {"number": 443, "name": "p", "protocol": %q}, "bind": %q, "hosts": ["*.example.com"], "tls": {%s}}]}`, s.protocol, s.bind, s.tls))
		w.routes("shop", "web", `{"hosts": ["web.example.com"], "gateways": ["shop/a"], "http": [{"route": [{"destination": {"host": "web.mesh"}}]}]}`)
		for _, flag := range []bool{false, true} {
			for _, firstPort := range []uint32{0, 1024} {
				p := routerIn("shop", "a")
				p.FirstPort = firstPort
				v := Settings{QUICListeners: flag}.NewIndex(w.snapshot()).Build(p)
				want := flag && firstPort == 0 && s == server{protocol: "HTTPS", tls: `"mode": "SIMPLE", "credentialName": "x"`}
				if names := listenerNames(v); slices.Contains(names, "udp_0.0.0.0_443") != want || !want && slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "udp_") }) {
					t.Errorf("%+v, setting %v, first port %d: listeners %v", s, flag, firstPort, names)
				}
				for part := range v.Parts() {
					if l, ok := part.(*Listener); ok && l.QUIC != strings.HasPrefix(l.Name, "udp_") {
						t.Errorf("%+v: %q has QUIC: %v", s, l.Name, l.QUIC)
					}
					if r, ok := part.(*RouteConfiguration); ok {
						for _, route := range r.VirtualHosts[0].Routes {
							if route.HTTP3 != want {
								t.Errorf("%+v, setting %v: routes announce HTTP/3: %v", s, flag, route.HTTP3)
							}
						}
					}
				}
			}
		}
	}
}
