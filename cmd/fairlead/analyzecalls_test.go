package main

import (
	"fmt"
	"strings"
	"testing"
)

const unreachable = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: api, namespace: shop}
spec:
  hosts: [api.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 8080, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: api}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: api, namespace: shop, labels: {app: api}}
spec: {address: 10.0.0.1, serviceAccount: api}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: web}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {address: 10.0.0.2, serviceAccount: web}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  ingress: [{port: {number: 80, name: http, protocol: HTTP}, bind: 10.0.0.2, defaultEndpoint: "127.0.0.1:8081"}]
  egress: [{port: {number: 8080, name: http, protocol: HTTP}, bind: 127.0.0.1, hosts: [HOSTS]}]
`

// TestAnalyzeFindsWhatCannotCall: by the same view that a server has.
func TestAnalyzeFindsWhatCannotCall(t *testing.T) {
	t.Parallel()
	for hosts, want := range map[string]bool{`"./api.test"`: false, `"~/*"`: false, `"./gone.test"`: true} {
		code, out, errs := cli(t, "analyze", write(t, strings.ReplaceAll(unreachable, "HOSTS", hosts)))
		if found := strings.Contains(out, "[FL0242] Sidecar shop/web: nothing can call through this proxy") && strings.Contains(out, "(workloads: web)"); found != want || code != 0 {
			t.Errorf("%s: exit code %d, want the warning: %v\n%s%s", hosts, code, want, out, errs)
		}
	}
}

// TestAnalyzeNamesAllThatCannotCall: a fleet of workloads that differ in their addresses, which are not judged
// one by one, and one with another account behind them.
func TestAnalyzeNamesAllThatCannotCall(t *testing.T) {
	t.Parallel()
	const n = 2*maxAlike + 10
	workload := func(i int, account string) string {
		return fmt.Sprintf("---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: web%03d, namespace: shop, labels: {app: web}}\nspec: {address: 10.0.1.%d, serviceAccount: %s}\n", i, i, account)
	}
	for hosts, found := range map[string]bool{`"./api.test"`: false, `"./gone.test"`: true} {
		text := strings.ReplaceAll(unreachable, "HOSTS", hosts) + repeated(n, func(i int) string { return workload(i+1, "web") }) + workload(n+1, "other")
		want := ""
		if found {
			want = fmt.Sprintf("%d more)", n+2-3) // besides the first three
		}
		code, out, errs := cli(t, "analyze", write(t, text))
		if got := strings.Contains(out, "[FL0242]"); got != found || code != 0 || !strings.Contains(out, want) {
			t.Errorf("%s: exit code %d, want the warning: %v, with %q\n%s%s", hosts, code, found, want, out, errs)
		}
	}
}

const speaking = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: mail, namespace: shop}
spec:
  hosts: [mail.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: $port, name: $name, protocol: $protocol, targetPort: 2525}]
  workloadSelector: {labels: {app: mail}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: mail-1, namespace: shop, labels: {app: mail}}
spec: {address: 10.0.0.2, serviceAccount: mail}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: mail-2, namespace: shop, labels: {app: mail}}
spec: {address: 10.0.0.3, serviceAccount: mail}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: mail, namespace: shop}
spec: {selector: {matchLabels: {app: mail}}, mtls: {mode: $mode}, portLevelMtls: {2525: {mode: $at}}}
`

// TestAnalyzeFindsServersThatAreHeardLate: a server that speaks first, at a port that takes plaintext
// and mTLS. STRICT and DISABLE, of the port or of all ports, are the cures.
func TestAnalyzeFindsServersThatAreHeardLate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		port, name, protocol, mode, at string
		want                           bool
	}{
		{"25", "tcp", "TCP", "PERMISSIVE", "PERMISSIVE", true},
		{"26", "tcp-smtp", "TCP", "PERMISSIVE", "PERMISSIVE", true},
		{"26", "db", "MySQL", "STRICT", "PERMISSIVE", true},
		{"25", "tcp", "TCP", "UNSET", "UNSET", true},
		{"25", "tcp", "TCP", "PERMISSIVE", "STRICT", false},
		{"25", "tcp", "TCP", "PERMISSIVE", "DISABLE", false},
		{"25", "tcp", "TCP", "STRICT", "UNSET", false},
		{"26", "tcp", "TCP", "PERMISSIVE", "PERMISSIVE", false},
		{"25", "http", "HTTP", "PERMISSIVE", "PERMISSIVE", false},
		{"25", "tls-smtp", "TLS", "PERMISSIVE", "PERMISSIVE", false},
	} {
		text := strings.NewReplacer("$port", c.port, "$name", c.name, "$protocol", c.protocol, "$mode", c.mode, "$at", c.at).Replace(speaking)
		code, out, errs := cli(t, "analyze", write(t, text))
		if n := strings.Count(out, "warning [FL0263] ServiceEntry shop/mail: mail.shop.internal:"+c.port+": the server probably speaks first, and port 2525 of its workloads is PERMISSIVE"); n != 0 != c.want || n > 1 || code != 0 {
			t.Errorf("%+v: exit code %d, %d warnings\n%s%s", c, code, n, out, errs)
		}
	}
}

const endingTLS = `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {address: 10.0.0.2, serviceAccount: web, labels: {app: web}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web-2, namespace: shop}
spec: {address: 10.0.0.3, serviceAccount: web, labels: {app: web}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  ingress:
  - {port: {number: 8080, name: http, protocol: HTTP}, bind: 0.0.0.0, defaultEndpoint: "127.0.0.1:9000"}
  - port: {number: 8443, name: https, protocol: HTTPS}
    bind: 0.0.0.0
    defaultEndpoint: 127.0.0.1:9000
    tls: {mode: SIMPLE, serverCertificate: /a.pem, privateKey: /a.key}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: web, namespace: shop}
spec: {selector: {matchLabels: {app: web}}, mtls: {mode: $mode}, portLevelMtls: {8443: {mode: $at}}}
`

// TestAnalyzeFindsIngressTLSWithoutEffect: tls of an ingress listener where the port has mTLS of the mesh.
func TestAnalyzeFindsIngressTLSWithoutEffect(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ mode, at, want string }{
		{"STRICT", "DISABLE", ""}, {"DISABLE", "UNSET", ""}, {"UNSET", "UNSET", "PERMISSIVE"}, {"STRICT", "UNSET", "STRICT"}, {"DISABLE", "STRICT", "STRICT"}, {"DISABLE", "PERMISSIVE", "PERMISSIVE"},
	} {
		code, out, errs := cli(t, "analyze", write(t, strings.NewReplacer("$mode", c.mode, "$at", c.at).Replace(endingTLS)))
		n := strings.Count(out, "[FL0270] Sidecar shop/web: spec.ingress[1].tls has no effect, as in Istio: port 8443 of workload \"web-1\" is "+c.want+",")
		if all := strings.Count(out, "FL0270"); all != n || (n == 1) != (c.want != "") || code != 0 {
			t.Errorf("%+v: exit code %d\n%s%s", c, code, out, errs)
		}
	}
}

// TestValidateWarnsOfPolicies that are valid and do something else than they say.
func TestValidateWarnsOfPolicies(t *testing.T) {
	t.Parallel()
	code, out, errs := cli(t, "validate", write(t, "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: a, namespace: b}\nspec: {selector: {matchLabels: {app: orders}}, jwtRules: [{issuer: \"https://a.example\\n\"}]}\n"))
	if code != 0 || !strings.Contains(out, "warning [FL0130]") || !strings.Contains(out, "and so the workloads with app=orders deny every request") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}

// TestAnalyzeFindsLeftOutDelegates: what is not included is named, with the tenant's delegate that is too large; the routes of
// others are included.
func TestAnalyzeFindsLeftOutDelegates(t *testing.T) {
	t.Parallel()
	part := func(ns string, matches int) string {
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: part, namespace: %s}\nspec: {http: [", ns) +
			strings.Repeat("{match: [{uri: {exact: /a/b}}], route: [{destination: {host: api.mesh}}]}, ", matches) + "]}\n---\n"
	}
	root := shopAPI + "---\n" + shopWeb + "---\n" + shopRoute("web", "{hosts: [web.mesh], http: [{match: ["+strings.Repeat("{uri: {prefix: /a}}, ", 400)+
		"], delegate: {name: part, namespace: evil}}, {match: [{uri: {prefix: /a}}], delegate: {name: part}}, {route: [{destination: {host: api.mesh}}]}]}")
	for matches, found := range map[int]bool{249: false, 251: true} {
		dir := tenantDirs(t, map[string]string{"platform": root + "---\n" + part("shop", 10), "evil": part("evil", matches)})
		_, out, errs := cli(t, "analyze", dir("platform"), dir("evil")+"=evil")
		const want = "[FL0235] VirtualService shop/web: does not include VirtualService evil/part ("
		if strings.Contains(out, want) != found || strings.Count(out, "FL0235") > 1 {
			t.Errorf("%d matches: want %q: %v\n%s%s", matches, want, found, out, errs)
		}
	}
}
