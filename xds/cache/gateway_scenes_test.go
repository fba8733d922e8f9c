package cache

import (
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// localityScenes are those of localityLbSetting.
func localityScenes() map[string]scenario {
	workload := func(name, address, locality string) string {
		return "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {namespace: shop, name: " + name + "}\n" +
			"spec: {address: " + address + ", network: net1, locality: " + locality + ", labels: {app: c}}\n"
	}
	elsewhere := workload("c-3", "10.0.1.3", "us/a") + workload("c-4", "10.0.1.4", "asia/a")
	setting := func(text, was, is string) scenario {
		return scenario{
			documents: rule(`trafficPolicy: {outlierDetection: {consecutive5xxErrors: 3}, loadBalancer: {localityLbSetting: {`+text+`}}}`) + elsewhere,
			was:       was, is: is,
		}
	}
	return map[string]scenario{
		"Failover.from":   setting("failover: [{from: eu, to: us}]", "from: eu", "from: asia"),
		"Failover.to":     setting("failover: [{from: eu, to: us}]", "to: us", "to: asia"),
		"Distribute.to":   setting(`distribute: [{from: eu/a/*, to: {"eu/a/*": 80, "eu/b/*": 20}}]`, `80, "eu/b/*": 20`, `70, "eu/b/*": 30`),
		"Distribute.from": setting(`distribute: [{from: eu/a/*, to: {"eu/a/*": 80, "eu/b/*": 20}}]`, "from: eu/a", "from: eu/b"),
	}
}

// twoGateways want the same port in different ways, so that the first one has it.
const twoGateways = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {namespace: shop, name: a}
spec: {servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {namespace: shop, name: b}
spec: {servers: [{port: {number: 80, name: tcp, protocol: TCP}, hosts: ['*']}]}
`

// gatewayOrder is a scene in which the Gateway that comes first by name is changed.
func gatewayOrder(to func(*mesh.Gateway)) scenario {
	return scenario{documents: twoGateways, set: func(fragments []*mesh.Fragment, second bool) {
		for _, f := range fragments {
			for i, g := range f.Gateways {
				other := *g
				other.CreateIndex, other.Hash = 2, mesh.Hash{1, g.Name[0]}
				if second && g.Name == "a" {
					to(&other)
					other.Hash = mesh.Hash{2}
				}
				f.Gateways[i] = &other
			}
		}
	}}
}

// gatewayScenes are those of servers of Gateways, and of tunnels.
func gatewayScenes() map[string]scenario {
	server := func(tls, was, is string) scenario {
		return scenario{
			documents: "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {namespace: shop, name: g}\n" +
				"spec: {servers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*'], tls: {" + tls + "}}]}\n",
			was: was, is: is,
		}
	}
	const (
		files    = "mode: MUTUAL, serverCertificate: /a.pem, privateKey: /b.pem, caCertificates: /c.pem"
		list     = "mode: SIMPLE, tlsCertificates: [{serverCertificate: /a.pem, privateKey: /b.pem}]"
		verifies = "mode: MUTUAL, credentialName: a, "
	)
	hashA, hashB := strings.Repeat("a1", 32), strings.Repeat("b2", 32)
	spkiA, spkiB := strings.Repeat("aaaa", 10)+"aaA=", strings.Repeat("bbbb", 10)+"bbA="
	const ends = "mode: SIMPLE, credentialName: a"
	named := server(ends, "name: first", "name: second")
	named.documents = strings.Replace(named.documents, "{servers: [{", "{servers: [{name: first, ", 1)
	return map[string]scenario{
		"Gateway.CreateIndex":                     gatewayOrder(func(g *mesh.Gateway) { g.CreateIndex = 3 }),
		"Gateway.Tenant":                          gatewayOrder(func(g *mesh.Gateway) { g.Tenant = true }),
		"Server.name":                             named,
		"Server.hosts":                            server(ends, "['*']", "[a.example]"),
		"Port.name":                               server(ends, "name: https", "name: https-other"),
		"ServerTLSSettings.mode":                  server("mode: SIMPLE, credentialName: a", "SIMPLE", "MUTUAL"),
		"ServerTLSSettings.credentialName":        server("mode: SIMPLE, credentialName: first", "first", "second"),
		"ServerTLSSettings.credentialNames":       server("mode: SIMPLE, credentialNames: [a]", "[a]", "[b]"),
		"ServerTLSSettings.serverCertificate":     server(files, "/a.pem", "/d.pem"),
		"ServerTLSSettings.privateKey":            server(files, "/b.pem", "/d.pem"),
		"ServerTLSSettings.caCertificates":        server(files, "/c.pem", "/d.pem"),
		"ServerTLSSettings.tlsCertificates":       server(list, "/b.pem}", "/b.pem}, {serverCertificate: /c.pem, privateKey: /d.pem}"),
		"TLSCertificate.serverCertificate":        server(list, "/a.pem", "/c.pem"),
		"TLSCertificate.privateKey":               server(list, "/b.pem", "/c.pem"),
		"ServerTLSSettings.verifyCertificateHash": server(verifies+"verifyCertificateHash: ["+hashA+"]", hashA, hashB),
		"ServerTLSSettings.verifyCertificateSpki": server(verifies+"verifyCertificateSpki: [\""+spkiA+"\"]", spkiA, spkiB),
		"ServerTLSSettings.insecureSkipVerify":    server(verifies+"insecureSkipVerify: true", "Verify: true", "Verify: false"),
		"ServerTLSSettings.minProtocolVersion":    server("mode: SIMPLE, credentialName: a, minProtocolVersion: TLSV1_2", "TLSV1_2", "TLSV1_3"),
		"ServerTLSSettings.maxProtocolVersion":    server("mode: SIMPLE, credentialName: a, maxProtocolVersion: TLSV1_2", "TLSV1_2", "TLSV1_3"),
		"ServerTLSSettings.caCertCredentialName":  server(verifies+"caCertCredentialName: first", "first", "second"),
		"ServerTLSSettings.alpnProtocols":         server("mode: SIMPLE, credentialName: a, alpnProtocols: [h2]", "[h2]", "[http/1.1]"),
		"ServerTLSSettings.ecdhCurves":            server("mode: SIMPLE, credentialName: a, ecdhCurves: [P-256]", "P-256", "P-384"),
		"ServerTLSSettings.subjectAltNames":       server(verifies+"subjectAltNames: [a.test]", "a.test", "b.test"),
		"ServerTLSSettings.cipherSuites":          server("mode: SIMPLE, credentialName: a, cipherSuites: [ECDHE-ECDSA-AES128-GCM-SHA256]", "[ECDHE-ECDSA-", "[ECDHE-RSA-"),
		"TunnelSettings.protocol": {
			documents: rule(`trafficPolicy: {tunnel: {protocol: CONNECT, targetHost: a.example, targetPort: 443}}`), was: "CONNECT", is: "POST",
		},
	}
}
