package meshgen

import (
	"fmt"
	"path/filepath"
	"strings"
)

// gatewayNamespace is that of the gateways, their workloads and their routes.
const gatewayNamespace = "edge"

// gatewayProxy is one of the proxies that are gateways.
func gatewayProxy(i int) Proxy {
	return Proxy{
		Name: fmt.Sprintf("gateway-%d", i), Namespace: gatewayNamespace, Account: "gateway", Gateway: true,
		Address: fmt.Sprintf("10.254.%d.%d", i/200, 1+i%200), Labels: map[string]string{"istio": "ingressgateway", "app": "gateway"},
	}
}

// gatewayFiles are the workloads of the gateways, and for each Gateway a file, and one of its routes to a
// service. All gateway proxies have all Gateways.
func (s Spec) gatewayFiles() map[string]string {
	out := map[string]string{}
	var hosts strings.Builder
	for i := range s.GatewayProxies {
		p := gatewayProxy(i)
		hosts.WriteString("---\n")
		head(&hosts, "WorkloadEntry", p.Name, p.Namespace)
		fmt.Fprintf(&hosts, "  address: %s\n  serviceAccount: %s\n  labels: {app: gateway, istio: ingressgateway}\n", p.Address, p.Account)
	}
	if s.GatewayProxies > 0 {
		out[filepath.Join(gatewayNamespace, "gateway-hosts.yaml")] = hosts.String()
	}
	for i := range s.Gateways {
		var b strings.Builder
		head(&b, "Gateway", gatewayName(i), gatewayNamespace)
		fmt.Fprintf(&b, `  selector: {istio: ingressgateway}
  servers:
  - port: {number: 80, name: http, protocol: HTTP}
    hosts: ["*.%[1]s.example.com"]
  - port: {number: 443, name: https, protocol: HTTPS}
    hosts: ["*.%[1]s.example.com"]
    tls: {mode: SIMPLE, credentialName: %[1]s}
`, gatewayName(i))
		out[filepath.Join(gatewayNamespace, gatewayName(i)+".yaml")] = b.String()
		out[s.gatewayRouteFile(i)] = s.gatewayRoute(i, s.RouteMarker(0))
	}
	return out
}

func gatewayName(i int) string { return fmt.Sprintf("gw-%03d", i) }

func (Spec) gatewayRouteFile(i int) string {
	return filepath.Join(gatewayNamespace, gatewayName(i)+"-routes.yaml")
}

// gatewayRoute is the VirtualService of a Gateway.
func (s Spec) gatewayRoute(i int, revision string) string {
	var b strings.Builder
	head(&b, "VirtualService", gatewayName(i), gatewayNamespace)
	fmt.Fprintf(&b, `  hosts: [www.%[1]s.example.com]
  gateways: [%[1]s]
  http:
  - route: [{destination: {host: %[2]s}}]
    headers: {request: {set: {x-revision: %[3]s}}}
`, gatewayName(i), s.Host(i%s.Services), revision)
	return b.String()
}

// EditGatewayRoute writes the VirtualService of the last Gateway anew.
func (s Spec) EditGatewayRoute(dir string, revision int) (Change, error) {
	marker := s.RouteMarker(revision)
	at, err := replace(filepath.Join(dir, s.gatewayRouteFile(s.Gateways-1)), s.gatewayRoute(s.Gateways-1, marker))
	return Change{at, marker}, err
}
