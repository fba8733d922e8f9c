package cache

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/fairlead/fairlead/internal/meshgen"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// scenario is a small mesh in which one field makes a difference. Random meshes take too
// long to meet the conditions of some fields, such as a subset that a route leads to, or a
// delegate that exists.
type scenario struct {
	config    string // MeshConfig
	documents string
	// was and is are two values of the field. In config or documents was stands once.
	was, is string
	// set gives a field that no document has its first value, or its second.
	set func(fragments []*mesh.Fragment, second bool)
	// keys are those of issuers, by URI.
	keys map[string]string
}

// sceneOf is a service with two versions, and what comes besides.
const sceneOf = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {namespace: shop, name: c}
spec:
  hosts: [c.mesh]
  addresses: [10.1.1.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{name: http, number: 80, protocol: HTTP}, {name: tcp, number: 9000, protocol: TCP}, {name: tls, number: 443, protocol: TLS}]
  workloadSelector: {labels: {app: c}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {namespace: shop, name: c-1}
spec: {address: 10.0.0.1, network: net1, locality: eu/a, labels: {app: c, version: v1}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {namespace: shop, name: c-2}
spec: {address: 10.0.0.2, network: net1, locality: eu/b, labels: {app: c, version: v2}}
---
`

// otherService has a port of the first one's address.
const otherService = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {namespace: shopping, name: d}
spec:
  hosts: [d.mesh]
  addresses: [10.1.1.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{name: tcp, number: 9000, protocol: TCP}]
  endpoints: [{address: 10.0.0.4}]
`

func rule(spec string) string {
	return "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {namespace: shop, name: c}\nspec: {host: c.mesh, " + spec + "}\n"
}

func routes(name, spec string) string {
	return "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {namespace: shop, name: " + name + "}\nspec: {" + spec + "}\n---\n"
}

func policy(spec string) string {
	return "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {namespace: shop, name: p}\nspec: {" + spec + "}\n"
}

// tokens is a RequestAuthentication with one rule.
func tokens(rule string) string {
	return "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {namespace: shop, name: t}\nspec: {jwtRules: [{" + rule + "}]}\n"
}

// twoKeys are key sets with one key each.
func twoKeys() (was, is string) {
	const set = `{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1","x":"%s"}]}`
	return fmt.Sprintf(set, "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"), fmt.Sprintf(set, "PUAXw-hDiVqStwqnTRt-vJyYLM8uxJaMwM1V8Sr0Zgw")
}

// asks is a scene with an extension provider of a kind, and a policy that asks it.
func asks(kind, spec, was, is string) scenario {
	return scenario{
		config:    "extensionProviders: [{name: other, envoyExtAuthzHttp: {service: c.mesh, port: 80}}, {name: asked, " + kind + ": {service: c.mesh, port: 80, " + spec + "}}]\n",
		documents: policy(`action: CUSTOM, provider: {name: asked}, rules: [{}]`), was: was, is: is,
	}
}

// providerScenes are those of extension providers.
func providerScenes() map[string]scenario {
	const byHTTP, byGRPC = "envoyExtAuthzHttp", "envoyExtAuthzGrpc"
	out := map[string]scenario{
		"MeshConfig.extensionProviders": asks(byGRPC, "", ", {name: asked, envoyExtAuthzGrpc: {service: c.mesh, port: 80, }}", ""),
		"ExtensionProvider.name":        asks(byGRPC, "", "{name: asked, ", "{name: third, "),

		"EnvoyExternalAuthorizationRequestBody.allowPartialMessage": asks(byHTTP, "includeRequestBodyInCheck: {maxRequestBytes: 5, allowPartialMessage: true}", "Message: true", "Message: false"),
		"EnvoyExternalAuthorizationRequestBody.maxRequestBytes":     asks(byHTTP, "includeRequestBodyInCheck: {maxRequestBytes: 5}", "Bytes: 5", "Bytes: 6"),
		"EnvoyExternalAuthorizationRequestBody.packAsBytes":         asks(byGRPC, "includeRequestBodyInCheck: {maxRequestBytes: 5, packAsBytes: true}", "Bytes: true", "Bytes: false"),
	}
	for kind, message := range map[string]string{byHTTP: "EnvoyExternalAuthorizationHttpProvider.", byGRPC: "EnvoyExternalAuthorizationGrpcProvider."} {
		out[message+"clearRouteCache"] = asks(kind, "clearRouteCache: true", "Cache: true", "Cache: false")
		out[message+"failOpen"] = asks(kind, "failOpen: true", "Open: true", "Open: false")
		out[message+"port"] = asks(kind, "failOpen: true", "port: 80, failOpen", "port: 9000, failOpen")
		out[message+"service"] = asks(kind, "", "asked, "+kind+": {service: c.mesh", "asked, "+kind+": {service: other.mesh")
		out[message+"statusOnError"] = asks(kind, `statusOnError: "503"`, `"503"`, `"502"`)
		out[message+"timeout"] = asks(kind, "timeout: 1s", "1s", "2s")
	}
	for field, spec := range map[string]string{
		"headersToDownstreamOnAllow": "[x-a]", "headersToDownstreamOnDeny": "[x-a]", "headersToUpstreamOnAllow": "[x-a]", "includeAdditionalHeadersInCheck": "{x-b: x-a}",
		"includeHeadersInCheck": "[x-a]", "includeRequestHeadersInCheck": "[x-a]", "pathPrefix": "/x-a",
	} {
		out["EnvoyExternalAuthorizationHttpProvider."+field] = asks(byHTTP, field+": "+spec, "x-a", "x-c")
	}
	return out
}

// replaceWorkloads changes all workloads, or makes copies that are as they were.
func replaceWorkloads(fragments []*mesh.Fragment, change bool, to func(*mesh.Workload)) {
	for _, f := range fragments {
		for i, w := range f.Workloads {
			other := *w
			if other.Hash = (mesh.Hash{2}); change {
				to(&other)
				other.Hash = mesh.Hash{1}
			}
			f.Workloads[i] = &other
		}
	}
}

func scenes() map[string]scenario {
	out := providerScenes()
	maps.Copy(out, logScenes())
	maps.Copy(out, metricScenes())
	maps.Copy(out, tracingScenes())
	maps.Copy(out, gatewayScenes())
	maps.Copy(out, localityScenes())
	maps.Copy(out, plainScenes())
	return out
}

func plainScenes() map[string]scenario {
	wasKeys, isKeys := twoKeys()
	const (
		client = `trafficPolicy: {tls: {mode: MUTUAL, clientCertificate: /a.pem, privateKey: /b.pem}}`
		cookie = `trafficPolicy: {loadBalancer: {consistentHash: {httpCookie: {name: user, path: /a, ttl: 1s}}}}`
		when   = `rules: [{when: [{key: source.ip, values: [10.0.0.0/8], notValues: [10.1.1.1]}]}]`
		to     = `route: [{destination: {host: c.mesh, subset: v1}}]`
	)
	delegates := routes("root", `hosts: [c.mesh], http: [{match: [{uri: {prefix: /a}}], delegate: {name: one, namespace: shop}}]`) +
		routes("one", `http: [{match: [{uri: {prefix: /a/b}}], route: [{destination: {host: c.mesh}}]}]`) +
		routes("two", `http: [{match: [{uri: {prefix: /a/c}}], route: [{destination: {host: c.mesh}}]}]`)
	const tls = `hosts: [c.mesh], tls: [{match: [{sniHosts: [c.mesh], destinationSubnets: [10.1.0.0/16], sourceLabels: {app: c}}], route: [{destination: {host: c.mesh, port: {number: 443}}}]}]`
	everywhere := strings.Replace(tls, ", sourceLabels: {app: c}", "", 1)
	return map[string]scenario{
		"HTTPRetry.retryOn": {documents: routes("c", `hosts: [c.mesh], http: [{retries: {attempts: 2, retryOn: 5xx}, route: [{destination: {host: c.mesh}}]}]`), was: "5xx", is: "reset"},
		"ServerTLSSettings.caCrl": {documents: "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {namespace: shop, name: g}\nspec: {servers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*'], " +
			"tls: {mode: MUTUAL, serverCertificate: /a.pem, privateKey: /b.pem, caCertificates: /c.pem, caCrl: /d.pem}}]}\n", was: "/d.pem", is: "/e.pem"},
		"RegexRewrite.rewrite": {documents: routes("c", `hosts: [c.mesh], http: [{rewrite: {uriRegexRewrite: {match: /a, rewrite: /b}}, route: [{destination: {host: c.mesh}}]}]`), was: "rewrite: /b", is: "rewrite: /c"},
		"WorkloadEntry.network": {set: func(fragments []*mesh.Fragment, second bool) { // it says which agent may speak for a workload
			fragments[0].Health = []*mesh.HealthReport{{ServiceAccount: mesh.ServiceAccount{Namespace: "shop"}, Network: "net1", Address: "10.0.0.1", Health: mesh.Unhealthy, Own: true}}
			for _, f := range fragments {
				for i, w := range f.Workloads {
					other := *w
					other.Hash = mesh.Hash{1}
					if second && w.Address == "10.0.0.1" {
						other.Network, other.Hash = "net2", mesh.Hash{2}
					}
					f.Workloads[i] = &other
				}
			}
		}},
		"RegexRewrite.match":                    {documents: routes("c", `hosts: [c.mesh], http: [{rewrite: {uriRegexRewrite: {match: /a, rewrite: /b}}, route: [{destination: {host: c.mesh}}]}]`), was: "match: /a", is: "match: /c"},
		"TLSMatchAttributes.destinationSubnets": {documents: routes("c", everywhere), was: "10.1.0.0/16", is: "10.2.0.0/16"},
		"TLSMatchAttributes.sourceLabels":       {documents: routes("c", tls), was: "{app: c}}", is: "{}}"},
		"TLSRoute.match":                        {documents: routes("c", everywhere), was: "[10.1.0.0/16]}", is: "[10.1.0.0/16]}, {sniHosts: [c.mesh], destinationSubnets: [10.2.0.0/16]}"},
		"Attribute.name":                        {documents: rule(`trafficPolicy: {loadBalancer: {consistentHash: {httpCookie: {name: user, ttl: 1s, attributes: [{name: SameSite, value: Strict}]}}}}`), was: "SameSite", is: "Path"},
		"Attribute.value":                       {documents: rule(`trafficPolicy: {loadBalancer: {consistentHash: {httpCookie: {name: user, ttl: 1s, attributes: [{name: SameSite, value: Strict}]}}}}`), was: "Strict", is: "Lax"},
		"DestinationRule.LimitTables": {documents: rule(cookie), set: func(fragments []*mesh.Fragment, second bool) {
			for _, f := range fragments {
				for i, r := range f.DestinationRules {
					limited := *r
					limited.LimitTables, limited.Hash = second, mesh.Hash{1}
					if !second {
						limited.Hash = mesh.Hash{2}
					}
					f.DestinationRules[i] = &limited
				}
			}
		}},
		"AuthorizationPolicy.DryRun": {documents: policy(`rules: [{}]`), set: func(fragments []*mesh.Fragment, second bool) {
			for _, f := range fragments {
				for i, p := range f.AuthorizationPolicies {
					tried := *p
					tried.DryRun, tried.Hash = second, mesh.Hash{1}
					if !second {
						tried.Hash = mesh.Hash{2}
					}
					f.AuthorizationPolicies[i] = &tried
				}
			}
		}},
		"AuthorizationPolicy.targetRefs":   {documents: policy(`rules: [{}]`), was: "[{}]", is: "[{}], targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: edge}]"},
		"ClaimToHeader.claim":              {documents: tokens(`issuer: a, outputClaimToHeaders: [{header: x-a, claim: sub}]`), was: "claim: sub", is: "claim: group"},
		"ClaimToHeader.header":             {documents: tokens(`issuer: a, outputClaimToHeaders: [{header: x-a, claim: sub}]`), was: "x-a", is: "x-b"},
		"JWTHeader.name":                   {documents: tokens(`issuer: a, fromHeaders: [{name: x-a, prefix: "Token "}]`), was: "x-a", is: "x-b"},
		"JWTHeader.prefix":                 {documents: tokens(`issuer: a, fromHeaders: [{name: x-a, prefix: "Token "}]`), was: "Token ", is: "Other "},
		"JWTRule.audiences":                {documents: tokens(`issuer: a, audiences: [us]`), was: "[us]", is: "[them]"},
		"JWTRule.forwardOriginalToken":     {documents: tokens(`issuer: a, forwardOriginalToken: true`), was: "Token: true", is: "Token: false"},
		"JWTRule.fromCookies":              {documents: tokens(`issuer: a, fromCookies: [a]`), was: "Cookies: [a]", is: "Cookies: [b]"},
		"JWTRule.fromHeaders":              {documents: tokens(`issuer: a, fromHeaders: [{name: x-a}]`), was: "{name: x-a}", is: "{name: x-a}, {name: x-b}"},
		"JWTRule.fromParams":               {documents: tokens(`issuer: a, fromParams: [a]`), was: "Params: [a]", is: "Params: [b]"},
		"JWTRule.issuer":                   {documents: tokens(`issuer: a`), was: "issuer: a", is: "issuer: b"},
		"JWTRule.jwks":                     {documents: tokens(`issuer: a, jwks: '` + wasKeys + `'`), was: wasKeys, is: isKeys},
		"JWTRule.jwksUri":                  {documents: tokens(`issuer: a, jwksUri: "https://a.example/keys"`), was: "a.example", is: "b.example", keys: map[string]string{"https://a.example/keys": wasKeys}},
		"JWTRule.outputClaimToHeaders":     {documents: tokens(`issuer: a, outputClaimToHeaders: [{header: x-a, claim: sub}]`), was: "sub}", is: "sub}, {header: x-b, claim: sub}"},
		"JWTRule.outputPayloadToHeader":    {documents: tokens(`issuer: a, outputPayloadToHeader: x-a`), was: "x-a", is: "x-b"},
		"JWTRule.spaceDelimitedClaims":     {documents: tokens(`issuer: a, spaceDelimitedClaims: [roles]`), was: "roles", is: "groups"},
		"RequestAuthentication.jwtRules":   {documents: tokens(`issuer: a`), was: "{issuer: a}", is: "{issuer: a}, {issuer: b}"},
		"RequestAuthentication.targetRefs": {documents: tokens(`issuer: a`), was: "{issuer: a}]", is: "{issuer: a}], targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: edge}]"},
		"RequestAuthentication.Keys": {documents: tokens(`issuer: a, jwks: '` + wasKeys + `'`), set: func(fragments []*mesh.Fragment, second bool) {
			for _, f := range fragments {
				for i, r := range f.RequestAuthentications {
					keyed := *r
					keyed.Hash, keyed.Keys = mesh.Hash{1}, []string{wasKeys}
					if second {
						keyed.Hash, keyed.Keys = mesh.Hash{2}, []string{isKeys}
					}
					f.RequestAuthentications[i] = &keyed
				}
			}
		}},
		"Condition.key":                             {documents: policy(when), was: "source.ip", is: "remote.ip"},
		"Condition.notValues":                       {documents: policy(when), was: "10.1.1.1]", is: "10.1.1.2]"},
		"Condition.values":                          {documents: policy(when), was: "10.0.0.0/8", is: "10.0.0.0/9"},
		"Rule.when":                                 {documents: policy(when), was: "10.1.1.1]}", is: "10.1.1.1]}, {key: remote.ip, values: [10.1.1.2]}"},
		"ConsistentHashLB.httpHeaderName":           {documents: rule(`trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: x-a}}}`), was: "x-a", is: "x-b"},
		"HTTPRewrite.authority":                     {documents: routes("c", `hosts: [c.mesh], http: [{rewrite: {authority: a.example}, route: [{destination: {host: c.mesh}}]}]`), was: "a.example", is: "b.example"},
		"HTTPSettings.h2UpgradePolicy":              {documents: rule(`trafficPolicy: {connectionPool: {http: {h2UpgradePolicy: UPGRADE}}}`), was: ": UPGRADE", is: ": DO_NOT_UPGRADE"},
		"Operation.notPorts":                        {documents: policy(`rules: [{to: [{operation: {ports: ["80", "81"], notPorts: ["81"]}}]}]`), was: `["81"]`, is: `["80"]`},
		"HTTPRewrite.uri":                           {documents: routes("c", `hosts: [c.mesh], http: [{match: [{uri: {prefix: /a}}], rewrite: {uri: /b}, route: [{destination: {host: c.mesh}}]}]`), was: "/b", is: "/c"},
		"ClientTLSSettings.clientCertificate":       {documents: rule(client), was: "/a.pem", is: "/c.pem"},
		"ClientTLSSettings.privateKey":              {documents: rule(client), was: "/b.pem", is: "/c.pem"},
		"ConsistentHashLB.httpQueryParameterName":   {documents: rule(`trafficPolicy: {loadBalancer: {consistentHash: {httpQueryParameterName: a}}}`), was: "Name: a", is: "Name: b"},
		"HTTPCookie.attributes":                     {documents: rule(`trafficPolicy: {loadBalancer: {consistentHash: {httpCookie: {name: user, ttl: 1s, attributes: [{name: SameSite, value: Strict}]}}}}`), was: ", attributes: [{name: SameSite, value: Strict}]", is: ""},
		"HTTPCookie.name":                           {documents: rule(cookie), was: "name: user", is: "name: other"},
		"Percent.value":                             {documents: routes("c", `hosts: [c.mesh], http: [{fault: {abort: {httpStatus: 500, percentage: {value: 10}}}, route: [{destination: {host: c.mesh}}]}]`), was: "value: 10", is: "value: 20"},
		"HTTPCookie.path":                           {documents: rule(cookie), was: "path: /a", is: "path: /b"},
		"HTTPCookie.ttl":                            {documents: rule(cookie), was: "1s", is: "2s"},
		"Delegate.name":                             {documents: delegates, was: "name: one, namespace", is: "name: two, namespace"},
		"Delegate.namespace":                        {documents: delegates, was: "one, namespace: shop}}", is: "one, namespace: other}}"},
		"HTTPRoute.mirrorPercent":                   {documents: routes("c", `hosts: [c.mesh], http: [{mirror: {host: c.mesh}, mirrorPercent: 10, route: [{destination: {host: c.mesh}}]}]`), was: "Percent: 10", is: "Percent: 20"},
		"LocalityLoadBalancerSetting.enabled":       {config: "localityLbSetting: {enabled: true}", documents: rule(`trafficPolicy: {outlierDetection: {consecutive5xxErrors: 3}}`), was: "enabled: true", is: "enabled: false"},
		"MeshConfig.defaultDestinationRuleExportTo": {config: "defaultDestinationRuleExportTo: ['*']", documents: rule(`trafficPolicy: {connectionPool: {tcp: {maxConnections: 3}}}`), was: "'*'", is: "'.'"},
		"HealthReport.Own": {set: func(fragments []*mesh.Fragment, second bool) {
			report := mesh.HealthReport{ServiceAccount: mesh.ServiceAccount{Namespace: "shop"}, Network: "net1", Address: "10.0.0.1"}
			agent, other := report, report
			agent.Health, agent.Own = mesh.Healthy, !second
			other.Health = mesh.Unhealthy
			fragments[0].Health, fragments[1].Health = []*mesh.HealthReport{&agent}, []*mesh.HealthReport{&other}
		}},
		"Meta.Labels": {set: func(fragments []*mesh.Fragment, second bool) {
			replaceWorkloads(fragments, second, func(w *mesh.Workload) {
				w.Labels = map[string]string{"app": "other"}
			})
		}},
		"Workload.Network": {set: func(fragments []*mesh.Fragment, second bool) {
			fragments[0].Health = []*mesh.HealthReport{{ServiceAccount: mesh.ServiceAccount{Namespace: "shop"}, Network: "net1", Address: "10.0.0.1", Health: mesh.Unhealthy, Own: true}}
			replaceWorkloads(fragments, second, func(w *mesh.Workload) { w.Network = "net2" })
		}},
		"Service.Yields": {documents: otherService, set: func(fragments []*mesh.Fragment, second bool) {
			if !second {
				return
			}
			for _, f := range fragments {
				for i, svc := range f.Services {
					if svc.Namespace == "shop" {
						yielding := *svc
						yielding.Yields, yielding.Hash = []uint32{9000}, mesh.Hash{1}
						f.Services[i] = &yielding
					}
				}
			}
		}},
		"ConnectionKeepalive.timeout":          {documents: rule(`trafficPolicy: {connectionPool: {http: {h2UpgradePolicy: UPGRADE, http2KeepAlive: {interval: 30s, timeout: 5s}}}}`), was: " 5s", is: " 6s"},
		"Delay.percent":                        {documents: routes("c", `hosts: [c.mesh], http: [{fault: {delay: {fixedDelay: 1s, percent: 10}}, route: [{destination: {host: c.mesh}}]}]`), was: "percent: 10", is: "percent: 20"},
		"HTTPMatchRequest.sourceNamespace":     {documents: routes("c", `hosts: [c.mesh], http: [{match: [{sourceNamespace: other}], timeout: 1s, route: [{destination: {host: c.mesh}}]}]`), was: "Namespace: other", is: "Namespace: shop"},
		"HTTPRedirect.derivePort":              {documents: routes("c", `hosts: [c.mesh], http: [{redirect: {scheme: https, derivePort: FROM_REQUEST_PORT}}]`), was: "FROM_REQUEST_PORT", is: "FROM_PROTOCOL_DEFAULT"},
		"HTTPRedirect.port":                    {documents: routes("c", `hosts: [c.mesh], http: [{redirect: {uri: /a, port: 8080}}]`), was: "8080", is: "8081"},
		"HTTPRoute.timeout":                    {documents: routes("c", `hosts: [c.mesh], http: [{timeout: 1s, route: [{destination: {host: c.mesh}}]}]`), was: "1s", is: "2s"},
		"HTTPRetry.backoff":                    {documents: routes("c", `hosts: [c.mesh], http: [{retries: {attempts: 2, backoff: 1s}, route: [{destination: {host: c.mesh}}]}]`), was: "1s", is: "2s"},
		"HTTPRetry.perTryTimeout":              {documents: routes("c", `hosts: [c.mesh], http: [{retries: {attempts: 2, perTryTimeout: 1s}, route: [{destination: {host: c.mesh}}]}]`), was: "1s", is: "2s"},
		"HTTPRetry.retryIgnorePreviousHosts":   {documents: routes("c", `hosts: [c.mesh], http: [{retries: {attempts: 2, retryIgnorePreviousHosts: true}, route: [{destination: {host: c.mesh}}]}]`), was: "Hosts: true", is: "Hosts: false"},
		"HTTPRetry.retryRemoteLocalities":      {documents: routes("c", `hosts: [c.mesh], http: [{retries: {attempts: 2, retryRemoteLocalities: true}, route: [{destination: {host: c.mesh}}]}]`), was: "Localities: true", is: "Localities: false"},
		"L4MatchAttributes.destinationSubnets": {documents: routes("c", `hosts: [c.mesh], tcp: [{match: [{destinationSubnets: [10.1.0.0/16]}], route: [{destination: {host: c.mesh, port: {number: 80}}}]}]`), was: "10.1.0.0", is: "10.2.0.0"},
		"L4MatchAttributes.sourceNamespace":    {documents: routes("c", `hosts: [c.mesh], tcp: [{match: [{port: 9000, sourceNamespace: shop}], route: [{destination: {host: c.mesh, port: {number: 80}}}]}]`), was: "Namespace: shop", is: "Namespace: other"},
		"Operation.ports":                      {documents: policy(`rules: [{to: [{operation: {ports: ["80", "81"]}}]}]`), was: `"81"`, is: `"82"`},
		"L4MatchAttributes.port":               {documents: routes("c", `hosts: [c.mesh], tcp: [{match: [{port: 9000}], route: [{destination: {host: c.mesh, port: {number: 80}}}]}]`), was: "{port: 9000}", is: "{port: 9001}"},
		"MeshConfig.proxyHttpPort":             {config: "proxyHttpPort: 15080", was: "15080", is: "15081"},
		"MeshConfig.enableAutoMtls":            {config: "enableAutoMtls: true", was: "true", is: "false"},
		"HealthReport.ServiceAccount": {set: func(fragments []*mesh.Fragment, second bool) {
			report := &mesh.HealthReport{ServiceAccount: mesh.ServiceAccount{Namespace: "shop"}, Network: "net1", Address: "10.0.0.1", Health: mesh.Unhealthy}
			if second {
				report.ServiceAccount.Name = "web"
			}
			fragments[0].Health = []*mesh.HealthReport{report}
		}},
		"Unenforced.Selector": {set: func(fragments []*mesh.Fragment, second bool) {
			u := &mesh.Unenforced{Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindAuthorizationPolicy, Namespace: "shop", Name: "u"}, Hash: mesh.Hash{1}, Origin: &mesh.Origin{}}}
			if second {
				u.Selector, u.Hash = map[string]string{"app": "other"}, mesh.Hash{2}
			}
			fragments[0].Unenforced = []*mesh.Unenforced{u}
		}},
		"VirtualService.Refused": refusedDelegate(),
		"Port.Name": {set: func(fragments []*mesh.Fragment, second bool) {
			for _, f := range fragments {
				for i, w := range f.Workloads {
					other := *w
					other.Ports, other.Hash = map[string]uint32{"http": 8080}, mesh.Hash{1}
					f.Workloads[i] = &other
				}
				for i, svc := range f.Services {
					if second {
						other := *svc
						other.Ports, other.Hash = slices.Clone(svc.Ports), mesh.Hash{1}
						other.Ports[0].Name = "http-other"
						f.Services[i] = &other
					}
				}
			}
		}},
		"Workload.Ports": {set: func(fragments []*mesh.Fragment, second bool) {
			for _, f := range fragments {
				for i, w := range f.Workloads {
					if second {
						other := *w
						other.Ports, other.Hash = map[string]uint32{"http": 8080}, mesh.Hash{1}
						f.Workloads[i] = &other
					}
				}
			}
		}},
		"Workload.Withdrawn": {set: func(fragments []*mesh.Fragment, second bool) {
			fragments[0].Health = []*mesh.HealthReport{{ServiceAccount: mesh.ServiceAccount{Namespace: "shop"}, Network: "net1", Address: "10.0.0.1", Health: mesh.Healthy, Own: true}}
			for _, f := range fragments {
				for i, w := range f.Workloads {
					other := *w
					other.Health, other.Withdrawn, other.Hash = mesh.Unhealthy, second, mesh.Hash{1}
					if !second {
						other.Hash = mesh.Hash{2}
					}
					f.Workloads[i] = &other
				}
			}
		}},
		"Subset.labels":                {documents: rule(`subsets: [{name: v1, labels: {version: v1}}]`) + "---\n" + routes("c", `hosts: [c.mesh], http: [{`+to+`}]`), was: "version: v1", is: "version: v2"},
		"TLSConfig.cipherSuites":       {config: "meshMTLS: {cipherSuites: [ECDHE-ECDSA-AES128-GCM-SHA256]}", was: "AES128", is: "AES256-GCM-SHA384, ECDHE-ECDSA-AES128"},
		"TLSConfig.ecdhCurves":         {config: "tlsDefaults: {ecdhCurves: [P-256]}", documents: rule(client), was: "P-256", is: "P-384"},
		"TLSConfig.minProtocolVersion": {config: "meshMTLS: {minProtocolVersion: TLSV1_2}", was: "TLSV1_2", is: "TLSV1_3"},
	}
}

// read is the mesh as it is written.
func (s scenario) read(t *testing.T, config, documents string) ([]*mesh.Fragment, []protoreflect.Message) {
	t.Helper()
	meshConfig, faults := manifest.DecodeMeshConfig("mesh.yaml", []byte(config))
	if meshConfig == nil || len(faults) > 0 {
		t.Fatalf("MeshConfig: %v", faults)
	}
	out := []*mesh.Fragment{{Source: "config", MeshConfig: meshConfig}}
	messages := []protoreflect.Message{meshConfig.Spec.ProtoReflect()}
	file, _ := manifest.Decode(manifest.Options{Source: "files"}, "scene.yaml", []byte(sceneOf+documents))
	for i, o := range file.Objects {
		if !o.Valid || len(o.NotInForce) > 0 {
			t.Fatalf("%v is not in force: %v", o.Meta.Key, o.NotInForce)
		}
		piece := o.Fragment()
		piece.Source = strconv.Itoa(i)
		out, messages = append(out, piece), append(messages, o.Spec.ProtoReflect())
	}
	return out, messages
}

// counts reports whether the field makes a difference to a proxy of the scene.
func (s scenario) counts(t *testing.T, field string) bool {
	t.Helper()
	if n := strings.Count(s.config+s.documents, s.was); s.set == nil && n != 1 {
		t.Fatalf("%q stands %d times in the scene", s.was, n)
	}
	fragments, was := s.read(t, s.config, s.documents)
	changed, is := s.read(t, strings.Replace(s.config, s.was, s.is, 1), strings.Replace(s.documents, s.was, s.is, 1))
	var fields []string
	for i := range was {
		fields = append(fields, meshgen.ChangedFields(was[i], is[i])...)
	}
	if s.set != nil {
		s.set(fragments, false)
		s.set(changed, true)
	} else if !slices.Equal(fields, []string{field}) {
		t.Fatalf("the scene changes %v", fields)
	}
	server := New(view.Settings{})
	differs := false
	sets := map[mesh.KeyLocation]string{}
	for uri, set := range s.keys {
		sets[mesh.KeyLocation{URI: uri, Private: true}] = set
	}
	keys := mesh.NewKeySets(sets)
	before := mesh.Merge(mesh.Input{Fallback: fragments[0].MeshConfig, Fragments: fragments, KeySets: keys})
	after := mesh.Merge(mesh.Input{Prev: before, Fallback: changed[0].MeshConfig, Fragments: changed, KeySets: keys})
	var proxies []*netProxy
	for _, namespace := range []string{"shop", "other"} {
		for address, kind := range map[string]view.ProxyType{"10.0.0.1": view.Sidecar, "10.0.0.9": view.Sidecar, "10.0.0.8": view.Router} {
			p := &netProxy{Proxy: view.Proxy{
				AccessLogService: true, EnvoyVersion: view.Version{Major: 1, Minor: 40},
				Type: kind, ServiceAccount: mesh.ServiceAccount{Namespace: namespace, Name: "default"}, Addresses: []string{address},
				Locality: mesh.Locality{Region: "eu", Zone: "a"}, Network: "net1",
			}}
			p.routes.Delivery = Inline
			p.had = mustGet(t, server, server.At(before), p, p.had)
			proxies = append(proxies, p)
		}
	}
	for _, p := range proxies {
		differs = differs || differenceOfGiven(given(p.had), given(mustGet(t, server, server.At(after), p, p.had))) != ""
	}
	return differs
}

// TestFieldsThatAreNotGenerated checks that none of them is forgotten.
func TestFieldsThatAreNotGenerated(t *testing.T) {
	t.Parallel()
	for field := range ungenerated() {
		if !slices.Contains(meshgen.IndependentFields(), field) {
			continue // its fields are asked themselves
		}
		if _, ok := scenes()[field]; !ok && without()[field] == "" {
			t.Errorf("%s has no scenario", field)
		}
	}
}

// TestScenarios checks that every scenario is for an existing field.
func TestScenarios(t *testing.T) {
	t.Parallel()
	for field, s := range scenes() {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			if !slices.Contains(meshgen.IndependentFields(), field) {
				t.Fatal("there is no such field")
			}
			if !s.counts(t, field) {
				t.Error("it makes no difference to any proxy of its scene")
			}
		})
	}
}
