package envoy_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// numbered are n texts with their numbers.
func numbered(n int, format string) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(format, i))
	}
	return strings.Join(list, ", ")
}

const (
	costTo      = "route: [{destination: {host: s.shop.mesh, port: {number: 80}}}]"
	costService = "{hosts: [s.shop.mesh], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.1}]}"
)

// costObject is a document of a tenant.
func costObject(kind, name, spec string) string {
	group := "networking"
	if strings.HasSuffix(kind, "Policy") || strings.HasSuffix(kind, "Authentication") {
		group = "security"
	}
	return fmt.Sprintf("\n---\napiVersion: %s.istio.io/v1\nkind: %s\nmetadata: {name: %s, namespace: shop}\nspec: %s\n", group, kind, name, spec)
}

// costRoutes are routes of hosts at the gateway.
func costRoutes(hosts, routes string) string {
	return costObject("ServiceEntry", "s", costService) + costObject("VirtualService", "v", fmt.Sprintf("{hosts: [%s], gateways: [edge/shared], http: [%s]}", hosts, routes))
}

func costServices(hosts, ports, endpoints int, more string) string {
	var list []string
	for i := range endpoints {
		list = append(list, fmt.Sprintf("{address: 10.0.%d.%d}", i/250, i%250+1))
	}
	return costObject("ServiceEntry", "s", fmt.Sprintf("{hosts: [%s], resolution: STATIC, ports: [%s], endpoints: [%s]%s}",
		numbered(hosts, "h%d.shop.mesh"), numbered(ports, "{number: 1%[1]d, name: http-%[1]d, protocol: HTTP}"), strings.Join(list, ", "), more))
}

func costScenes() []costScene {
	return append(append(append(routeScenes(), clusterScenes()...), policyScenes()...), expressionScenes()...)
}

func routeScenes() []costScene {
	headers := func(n int, value string) string {
		return "headers: {request: {add: {" + numbered(n, "x-%d: "+value) + "}}}"
	}
	prefixes := func(n int, more string) string {
		return numbered(n, "{match: [{uri: {prefix: /%d/}}], "+more+costTo+"}")
	}
	return []costScene{
		{name: "10,000 routes by prefix", manifest: costRoutes("s.shop.mesh", prefixes(10_000, ""))},
		{name: "300 routes of 100 hosts", manifest: costRoutes(numbered(100, "h%d.shop.mesh"), prefixes(300, ""))},
		{name: "a route with 5,000 matches", manifest: costRoutes("s.shop.mesh", "{match: ["+numbered(5000, "{uri: {prefix: /%d/}}")+"], "+costTo+"}")},
		{name: "a route with 1,000 matches and 100 headers", manifest: costRoutes("s.shop.mesh", "{"+headers(100, "v")+", match: ["+numbered(1000, "{uri: {prefix: /%d/}}")+"], "+costTo+"}")},
		{name: "100 routes with 100 headers each", manifest: costRoutes("s.shop.mesh", prefixes(100, headers(100, "v")+", "))},
		{name: "a route with 1,000 headers of 1 kB", manifest: costRoutes("s.shop.mesh", "{"+headers(1000, strings.Repeat("v", 1024))+", "+costTo+"}")},
		{name: "a route with 500 headers of 64 `%PROTOCOL%`", manifest: costRoutes("s.shop.mesh", "{"+headers(500, `"`+strings.Repeat("%%PROTOCOL%%", 64)+`"`)+", "+costTo+"}")},
		{name: "1,000 routes with 10 conditions on headers", manifest: costRoutes("s.shop.mesh", numbered(1000, "{match: [{headers: {"+numbered(10, "x-%%[1]d-%d: {exact: v}")+"}}], "+costTo+"}"))},
		{name: "500 matches, 100 allowed origins", manifest: costRoutes("s.shop.mesh", "{corsPolicy: {allowOrigins: ["+numbered(100, "{exact: 'https://o%d.example'}")+"]}, match: ["+numbered(500, "{uri: {prefix: /%d/}}")+"], "+costTo+"}")},
		{name: "500 matches, 100 destinations", manifest: costRoutes("s.shop.mesh", "{match: ["+numbered(500, "{uri: {prefix: /%d/}}")+"], route: ["+numbered(100, "{weight: 1%[1]d, destination: {host: s.shop.mesh, port: {number: 80}}}")+"]}")},
		{name: "sidecar: 100 routes of a wildcard, 20 hosts × 10 ports", sidecar: true, manifest: costServices(20, 10, 1, "") + costObject("VirtualService", "v", "{hosts: ['*.shop.mesh'], http: ["+prefixes(100, "")+"]}")},
		{name: "200 routes that include the same 200", manifest: costRoutes("s.shop.mesh", numbered(200, "{match: [{uri: {prefix: /%d/}}], delegate: {name: d}}")) + costObject("VirtualService", "d", "{http: ["+numbered(200, "{match: [{headers: {x: {exact: v%d}}}], "+costTo+"}")+"]}")},
	}
}

func clusterScenes() []costScene {
	rule := func(spec string) string {
		return costServices(10, 10, 1, "") + costObject("DestinationRule", "r", "{host: '*.shop.mesh', "+spec+"}")
	}
	var objects strings.Builder
	for i := range 1000 {
		objects.WriteString(costObject("ServiceEntry", fmt.Sprintf("s%d", i), strings.Replace(costService, "s.shop", fmt.Sprintf("s%d.shop", i), 1)))
	}
	return []costScene{
		{name: "1,000 services, an object each", manifest: objects.String()},
		{name: "a ServiceEntry of 50 hosts × 50 ports", manifest: costServices(50, 50, 1, "")},
		{name: "the same in the mesh", manifest: costServices(50, 50, 1, ", location: MESH_INTERNAL")},
		{name: "10 hosts × 10 ports × 1,000 endpoints", manifest: costServices(10, 10, 1000, "")},
		{name: "a service of 4,000 endpoints", manifest: costServices(1, 1, 4000, "")},
		{name: "10 hosts × 10 ports, 25 subsets", manifest: rule("subsets: [" + numbered(25, "{name: v%d}") + "]")},
		{name: "10 hosts × 10 ports, TLS (SIMPLE)", manifest: rule("trafficPolicy: {tls: {mode: SIMPLE}}")},
		{name: "10 hosts × 10 ports, TLS with 300 names", manifest: rule("trafficPolicy: {tls: {mode: SIMPLE, subjectAltNames: [" + numbered(300, "n%d.shop.mesh") + "]}}")},
		{name: "10 hosts × 10 ports, mTLS with 300 names", manifest: rule("trafficPolicy: {tls: {mode: ISTIO_MUTUAL, subjectAltNames: [" + numbered(300, "n%d.shop.mesh") + "]}}")},
		{name: "10 hosts × 10 ports, outlierDetection", manifest: rule("trafficPolicy: {outlierDetection: {consecutive5xxErrors: 1}}")},
		{name: "10 hosts × 10 ports, 30 labels of failoverPriority", manifest: rule("trafficPolicy: {outlierDetection: {}, loadBalancer: {localityLbSetting: {failoverPriority: [" + numbered(30, "l%d") + "]}}}")},
		{name: "sidecar: 20 hosts × 10 ports", sidecar: true, manifest: costServices(20, 10, 1, "")},
	}
}

func policyScenes() []costScene {
	policy := func(rules string) string {
		return costServices(1, 1, 1, "") + costObject("AuthorizationPolicy", "a", "{rules: ["+rules+"]}")
	}
	keys := func(rules, n int) string {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			panic(err) // cannot be
		}
		set := numbered(n, `{"kty":"RSA","use":"sig","kid":"k%d","e":"AQAB","n":"`+base64.RawURLEncoding.EncodeToString(key.N.Bytes())+`"}`)
		return costServices(1, 1, 1, "") + costObject("RequestAuthentication", "r", "{jwtRules: ["+numbered(rules, "{issuer: i%d.example, jwks: '{\"keys\":["+set+"]}'}")+"]}")
	}
	scenes := []costScene{
		{name: "sidecar: an issuer with 1,000 keys", manifest: keys(1, 1000)},
		{name: "sidecar: 100 issuers with 5 keys", manifest: keys(100, 5)},
		{name: "sidecar: 5,000 paths of a policy", manifest: policy("{to: [{operation: {paths: [" + numbered(5000, "/p%d") + "]}}]}")},
		{name: "sidecar: 5,000 templates of paths", manifest: policy("{to: [{operation: {paths: [" + numbered(5000, "'/p%d/{*}/{**}'") + "]}}]}")},
		{name: "sidecar: 1,000 identities", manifest: policy("{from: [{source: {principals: [" + numbered(1000, "cluster.local/ns/a/sa/b%d") + "]}}]}")},
		{name: "sidecar: 1,000 blocks of addresses", manifest: policy("{from: [{source: {ipBlocks: [" + numbered(200, "10.1.0.%[1]d, 10.1.1.%[1]d, 10.1.2.%[1]d, 10.1.3.%[1]d, 10.1.4.%[1]d") + "]}}]}")},
		{name: "sidecar: a rule of 100 `from`, 100 `to`, 100 `when`", manifest: policy("{from: [" + numbered(100, "{source: {namespaces: [n%d]}}") + "], to: [" + numbered(100, "{operation: {paths: [/n%d]}}") + "], when: [" + numbered(100, "{key: 'request.headers[x%d]', values: [a]}") + "]}")},
	}
	for i := range scenes {
		scenes[i].sidecar = true
	}
	return scenes
}

func expressionScenes() []costScene {
	newest := envoytest.Ends()[0]
	var scenes []costScene
	for _, x := range []struct {
		n                 int
		expression, words string
		only              string
	}{
		{1000, `[a-z]+/x`, "", ""},
		{100, `(\pL{100}){10}(\pL{100}){10}`, "", newest},
		{100, `\pL{30}`, "", newest},
		{100, `\pL`, "", ""},
		{100, `[\pL\pN]{20}`, "", ""},
		{100, `.{1000}`, "", ""},
		{100, `.{100}`, "", ""},
		{100, `[^a]{1000}`, "", ""},
		{100, `\w{1000}`, "", ""},
		{100, `a{1000}`, "", ""},
		{100, `((a{10}){10}){10}`, "", ""},
		{100, `(?i)` + strings.Repeat("k", 500), "`(?i)` and 500 letters", ""},
		{100, strings.Repeat("a|", 500) + "b", "500 alternatives of a letter", ""},
		{100, strings.Repeat("a?", 500), "500 times `a?`", ""},
		{100, strings.Repeat("(a*)*", 200), "200 times `(a*)*`", ""},
		{100, strings.Repeat("x", 1000), "1,000 letters", ""},
	} {
		words := x.words
		if words == "" {
			words = "`" + x.expression + "`"
		}
		scenes = append(scenes, costScene{
			name: fmt.Sprintf("%d expressions: %s", x.n, words), only: x.only,
			manifest: costRoutes("s.shop.mesh", numbered(x.n, "{match: [{uri: {regex: '/%d"+x.expression+"'}}], "+costTo+"}")),
		})
	}
	return append(scenes, costScene{
		name: "sidecar: 10 of `a{1000}` of a wildcard, 20 hosts × 10 ports", sidecar: true,
		manifest: costServices(20, 10, 1, "") + costObject("VirtualService", "v", "{hosts: ['*.shop.mesh'], http: ["+numbered(10, "{match: [{uri: {regex: '/%da{1000}'}}], "+costTo+"}")+"]}"),
	})
}
