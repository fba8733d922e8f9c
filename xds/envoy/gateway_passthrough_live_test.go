package envoy_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

const gatewayPassthroughMesh = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {bind: 127.0.0.12, port: {number: MESHPORT, name: tls, protocol: TLS}, hosts: ["*.shop.mesh"], tls: {mode: AUTO_PASSTHROUGH}}
  - {bind: 127.0.0.12, port: {number: TLSPORT, name: tls-pass, protocol: TLS}, hosts: ["*.example.com"], tls: {mode: PASSTHROUGH}}
  - {bind: 127.0.0.12, port: {number: TLSPORT, name: tls-ends, protocol: TLS}, hosts: ["ends.test"], tls: {mode: MUTUAL, credentialName: edge}}
  - {bind: 127.0.0.12, port: {number: TLSPORT, name: tls-mesh, protocol: TLS}, hosts: ["mesh.test"], tls: {mode: ISTIO_MUTUAL}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: names, namespace: edge}
spec:
  hosts: ["*.example.com"]
  gateways: [edge]
  tls:
  - {match: [{sniHosts: [a.example.com]}], route: [{destination: {host: a.out.mesh}}]}
  - {match: [{sniHosts: ["*.example.com"]}], route: [{destination: {host: b.out.mesh}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: ends, namespace: edge}
spec: {hosts: [ends.test, mesh.test], gateways: [edge], tcp: [{route: [{destination: {host: lines.out.mesh}}]}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9000, name: tcp, protocol: TCP}]
  endpoints:
  - {address: 127.0.0.1, ports: {tcp: VONE}, labels: {version: one}, serviceAccount: orders}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: orders, namespace: shop}
spec:
  host: orders.shop.mesh
  trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}
  subsets:
  - {name: one, labels: {version: one}}
  - {name: two, labels: {version: two}}
  - {name: plain, labels: {version: one}, trafficPolicy: {tls: {mode: DISABLE}}}
`

const gatewayOutside = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: edge}
spec:
  hosts: [%[1]s.out.mesh]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 443, name: tls, protocol: TLS}]
  endpoints: [{address: 127.0.0.1, ports: {tls: %[2]d}}]
`

// TestGatewayPassesTLS: TLS passes to who its server name says, and ends where the gateway has to end it. mTLS of
// the mesh passes with the certificates of both ends.
func TestGatewayPassesTLS(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			envoytest.BinaryVersion(t, version) // or skip, before anything runs
			ca, untrusted := newAuthority(t), newAuthority(t)
			f := &fixture{ca: ca, version: version, secrets: []any{
				keyPair(t, "edge", ca.leaf(t, 20, edgeID, ecKey(t), time.Hour)), roots("edge", ca.rootPEM(), ""),
			}}
			ports := envoytest.FreePorts(t, 2)
			server := func(name string) int { return saysItsName(t, ca, name) }
			m := strings.NewReplacer("MESHPORT", strconv.Itoa(ports[0]), "TLSPORT", strconv.Itoa(ports[1]), "VONE", strconv.Itoa(server("orders"))).Replace(gatewayPassthroughMesh) +
				fmt.Sprintf(gatewayOutside, "a", server("a")) + fmt.Sprintf(gatewayOutside, "b", server("b")) + fmt.Sprintf(gatewayOutside, "lines", lineServer(t))
			e := f.start(t, snapshotOf(t, m, ""), edgeProxy())
			clients := map[string]tls.Certificate{"good": ca.pair(t, webID), "untrusted": untrusted.pair(t, webID)}
			say := func(port int, sni, client, alpn string) (string, error) {
				cfg := &tls.Config{InsecureSkipVerify: true, ServerName: sni}
				if c, ok := clients[client]; ok {
					cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c, nil }
				}
				if alpn != "" {
					cfg.NextProtos = []string{alpn}
				}
				c, err := (&tls.Dialer{Config: cfg}).DialContext(t.Context(), "tcp", at(serverIP, port))
				if err != nil {
					return "", err
				}
				defer func() { _ = c.Close() }()
				_ = c.SetDeadline(time.Now().Add(patience))
				if _, err := c.Write([]byte("hello\n")); err != nil {
					return "", err
				}
				line := make([]byte, 64)
				n, err := c.Read(line)
				return strings.TrimSpace(string(line[:n])), err
			}
			envoytest.Eventually(t, envoytest.Patience, func() error {
				_, err := say(ports[1], "a.example.com", "", "")
				return err
			})
			for _, c := range []struct {
				port                    int
				sni, client, alpn, want string
			}{
				{0, "outbound_.9000_._.orders.shop.mesh", "good", "istio", "orders by " + webID},
				{0, "outbound_.9000_.one_.orders.shop.mesh", "good", "istio", "orders by " + webID},
				{0, "outbound_.9000_.two_.orders.shop.mesh", "good", "istio", ""},   // has no endpoints
				{0, "outbound_.9000_.plain_.orders.shop.mesh", "good", "istio", ""}, // for mTLS there is none
				{0, "outbound_.9000_._.orders.shop.mesh", "untrusted", "istio", ""},
				{0, "outbound_.9000_._.orders.shop.mesh", "", "istio", ""},
				{0, "outbound_.9000_._.orders.shop.mesh", "good", "", ""},
				{0, "outbound_.9001_._.orders.shop.mesh", "good", "istio", ""},
				{0, "orders.shop.mesh", "good", "istio", ""},
				{0, "", "good", "istio", ""},
				{1, "a.example.com", "", "", "a by nobody"},
				{1, "A.example.com", "", "", "a by nobody"},
				{1, "c.example.com", "good", "", "b by " + webID},
				{1, "c.d.example.com", "", "", "b by nobody"},
				{1, "example.com", "", "", ""},
				{1, "", "", "", ""},
				{1, "ends.test", "good", "", "echo hello"},
				{1, "ends.test", "", "", ""},
				{1, "ends.test", "untrusted", "", ""},
				{1, "mesh.test", "good", "istio", "echo hello"},
				{1, "mesh.test", "good", "", "echo hello"},
				{1, "mesh.test", "", "istio", ""},
			} {
				got, err := say(ports[c.port], c.sni, c.client, c.alpn)
				if got != c.want {
					t.Errorf("port %d, %q, certificate %q, ALPN %q: %q, %v; want %q", c.port, c.sni, c.client, c.alpn, got, err, c.want)
				}
			}
			e.NoRejections(t)
		})
	}
}

// saysItsName serves TLS, and says who it is and who the client is.
func saysItsName(t *testing.T, ca *authority, name string) int {
	t.Helper()
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{ca.serverCertificate(t, name)},
		ClientAuth: tls.RequestClientCert, NextProtos: []string{"istio"},
	}
	return accept(t, func(c net.Conn) {
		s := tls.Server(c, cfg)
		defer func() { _ = s.Close() }()
		if s.HandshakeContext(t.Context()) != nil {
			return
		}
		who := "nobody"
		if list := s.ConnectionState().PeerCertificates; len(list) > 0 {
			if list[0].CheckSignatureFrom(ca.cert) != nil {
				return
			}
			who = list[0].URIs[0].String()
		} else if name == "orders" {
			return
		}
		_, _ = fmt.Fprintf(s, "%s by %s\n", name, who)
	})
}
