package traffic

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/meshtest"
)

const gatewayMesh = meshtest.GatewayWorkload + `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: public, namespace: edge}
spec:
  selector: {istio: ingressgateway}
  servers:
  - port: {number: 8080, name: http, protocol: HTTP}
    bind: 127.0.0.13
    hosts: ["*.example.com"]
  - port: {number: 8081, name: redirect, protocol: HTTP}
    bind: 127.0.0.13
    hosts: ["*.example.com"]
    tls: {httpsRedirect: true}
  - port: {number: 9443, name: https, protocol: HTTPS}
    bind: 127.0.0.13
    hosts: ["shop.example.com"]
    tls: {mode: SIMPLE, serverCertificate: CERTS/tls.crt, privateKey: CERTS/tls.key}
  - port: {number: 9443, name: https-missing, protocol: HTTPS}
    bind: 127.0.0.13
    hosts: ["missing.example.com"]
    tls: {mode: SIMPLE, serverCertificate: CERTS/missing.crt, privateKey: CERTS/missing.key}
  - port: {number: 8443, name: tls, protocol: TLS}
    bind: 127.0.0.13
    hosts: ["*.example.com"]
    tls: {mode: PASSTHROUGH}
  - port: {number: 9000, name: tcp, protocol: TCP}
    bind: 127.0.0.13
    hosts: ["*"]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: self, namespace: edge}
spec:
  hosts: [self.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 443, name: tls, protocol: TLS}]
  endpoints: [{address: 127.0.0.13, ports: {tls: 9443}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: public, namespace: shop}
spec:
  hosts: [shop.example.com]
  gateways: [edge/public]
  http:
  - match: [{uri: {prefix: /teapot}}]
    directResponse: {status: 418}
  - route: [{destination: {host: echo.shop.internal, port: {number: 9080}}}]
  tls:
  - match: [{sniHosts: [shop.example.com]}]
    route: [{destination: {host: self.example.com, port: {number: 443}}}]
  tcp:
  - route: [{destination: {host: echo.shop.internal, port: {number: 9000}}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: private, namespace: edge}
spec:
  selector: {matchLabels: {istio: ingressgateway}}
  action: DENY
  rules: [{to: [{operation: {paths: [/private], ports: ["8080", "8082"]}}]}]
`

// TestGateway: connections from outside the mesh, in each form, reach a workload by mTLS of the gateway's
// identity. An edit of its objects reaches it while it serves, and a key that is missing closes no other
// server of the port.
func TestGateway(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	certs := t.TempDir()
	roots := writeCertificate(t, certs, "shop.example.com")
	p.Write("gateway.yaml", strings.ReplaceAll(gatewayMesh, "CERTS", certs))
	p.StartServer()
	for _, name := range []string{"http", "grpc", "tcp"} {
		p.StartApp(meshtest.Host{Name: name, App: []string{"--protocol", name}})
	}
	p.StartHost(p.echoH)
	p.StartGateway()
	p.AwaitLive("echo", "edge")

	ask := func(port int, scheme, host, path string) (int, string, error) {
		to := p.at(13, port)
		c := &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{
				DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					var d net.Dialer
					return d.DialContext(ctx, "tcp", to)
				},
			},
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+host+path, http.NoBody)
		if err != nil {
			return 0, "", err
		}
		res, err := c.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		return res.StatusCode, string(body) + res.Header.Get("Location"), err
	}
	wants := func(port int, scheme, host, path string, status int, text string) func() error {
		return func() error {
			got, body, err := ask(port, scheme, host, path)
			if err == nil && (got != status || !strings.Contains(body, text)) {
				err = fmt.Errorf("%d, %q; want %d, %q", got, body, status, text)
			}
			if err != nil {
				return fmt.Errorf("%s://%s%s at %d: %w", scheme, host, path, port, err)
			}
			return nil
		}
	}
	const caller = `"caller":"spiffe://cluster.local/ns/edge/sa/edge"`
	for _, check := range []func() error{
		wants(8080, "http", "shop.example.com", "/", http.StatusOK, caller),
		wants(8080, "http", "shop.example.com:8080", "/", http.StatusOK, caller),
		wants(8080, "http", "shop.example.com", "/teapot", http.StatusTeapot, ""),
		wants(8080, "http", "other.example.com", "/", http.StatusNotFound, ""),
		wants(8080, "http", "shop.example.com", "/private", http.StatusForbidden, "RBAC"),
		wants(8081, "http", "shop.example.com", "/a", http.StatusMovedPermanently, "https://shop.example.com/a"),
		wants(9443, "https", "shop.example.com", "/", http.StatusOK, caller),
		wants(8443, "https", "shop.example.com", "/", http.StatusOK, caller),
		func() error { _, err := askTCP(t.Context(), p.at(13, 9000), nil); return err },
	} {
		settle(t, check)
	}
	if _, _, err := ask(9443, "https", "missing.example.com", "/"); err == nil {
		t.Error("a server without its key answers")
	}
	p.Edit("gateway.yaml", "status: 418", "status: 409")
	settle(t, wants(8080, "http", "shop.example.com", "/teapot", http.StatusConflict, ""))
	p.Edit("gateway.yaml", "number: 8080, name: http,", "number: 8082, name: http,")
	settle(t, wants(8082, "http", "shop.example.com", "/", http.StatusOK, caller))
	p.Edit("gateway.yaml", "paths: [/private]", "paths: [/public]")
	settle(t, wants(8082, "http", "shop.example.com", "/public", http.StatusForbidden, "RBAC"))
}

// writeCertificate writes tls.crt and tls.key of a host, and returns who trusts them.
func writeCertificate(t *testing.T, dir, host string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: der}, "tls.key": {Type: "PRIVATE KEY", Bytes: encoded}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool
}
