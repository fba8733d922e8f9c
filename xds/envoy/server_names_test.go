package envoy_test

import (
	"testing"

	"github.com/fairlead/fairlead/xds/view"
)

// TestServerNamesCloseNoPort: Envoy rejects a listener with a server name twice, in any case, or with a
// wildcard within a label. One object with such a name must not cost all others at the port.
func TestServerNamesCloseNoPort(t *testing.T) {
	t.Parallel()
	s := snapshotOf(t, `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 443, name: tls, protocol: TLS}]
  endpoints: [{address: 10.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: wildcard, namespace: shop}
spec: {hosts: ["*.wild.mesh"], location: MESH_INTERNAL, resolution: NONE, ports: [{number: 80, name: http, protocol: HTTP}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: 443, name: tls, protocol: TLS}, hosts: ["*.example.com"], tls: {mode: PASSTHROUGH}}
  - {port: {number: 8443, name: https, protocol: HTTPS}, hosts: [a.example.com, A.example.com], tls: {mode: SIMPLE, credentialName: a}}
  - {port: {number: 15443, name: mesh, protocol: TLS}, hosts: ["*.mesh"], tls: {mode: AUTO_PASSTHROUGH}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: shop}
spec:
  hosts: [a.example.com, A.example.com]
  gateways: [edge]
  tls: [{match: [{sniHosts: [a.example.com, A.example.com, a.example.com]}], route: [{destination: {host: web.mesh, port: {number: 443}}}]}]
  http: [{route: [{destination: {host: web.mesh, port: {number: 80}}}]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.mesh]
  tls: [{match: [{sniHosts: [web.mesh, web.mesh]}], route: [{destination: {host: web.mesh, port: {number: 443}}}]}]
`, "")
	for _, kind := range []view.ProxyType{view.Router, view.Sidecar} {
		p := proxyFile{Namespace: "shop", ServiceAccount: "edge", IP: "10.0.0.8", Labels: map[string]string{"app": "edge"}}.proxy()
		p.Type = kind
		check(t, buildAll(view.Build(s, p)))
	}
}
