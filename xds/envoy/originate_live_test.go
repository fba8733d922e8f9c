package envoy_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// serverCertificate has DNS names and SPIFFE IDs.
func (a *authority) serverCertificate(tb testing.TB, names ...string) tls.Certificate {
	tb.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatalIf(tb, err, "making a key")
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(3), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, n := range names {
		if !strings.Contains(n, "://") {
			tmpl.DNSNames = append(tmpl.DNSNames, n)
			continue
		}
		u, err := url.Parse(n)
		fatalIf(tb, err, "reading %q", n)
		tmpl.URIs = append(tmpl.URIs, u)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &k.PublicKey, a.key)
	fatalIf(tb, err, "signing %q", names)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k}
}

// TestOriginatedTLSDemandsTheServicesNames: the certificate of a server has one of the names
// that the service has in the mesh, and the name that was asked for, as in Istio.
func TestOriginatedTLSDemandsTheServicesNames(t *testing.T) {
	t.Parallel()
	const host = "orders.shop.mesh"
	ca := newAuthority(t)
	root := filepath.Join(t.TempDir(), "root.pem")
	fatalIf(t, os.WriteFile(root, []byte(ca.rootPEM()), 0o600), "writing %q", root)
	for _, c := range []struct {
		name, service, rule string
		certificate         []string
		want                int
	}{
		{"account", "serviceAccount: orders", "", []string{host, ordersID}, http.StatusOK},
		{"no_account", "serviceAccount: orders", "", []string{host}, http.StatusServiceUnavailable},
		{"other_account", "serviceAccount: orders", "", []string{host, webID}, http.StatusServiceUnavailable},
		{"other_host", "serviceAccount: orders", "", []string{"pay.shop.mesh", ordersID}, http.StatusServiceUnavailable},
		{"rule_names", "serviceAccount: orders", `, subjectAltNames: [orders.example]`, []string{"orders.example"}, http.StatusOK},
		{"entry_names", "weight: 1", "", []string{host, "spiffe://else/where"}, http.StatusOK},
		{"entry_names_other_host", "weight: 1", "", []string{"pay.shop.mesh", "spiffe://else/where"}, http.StatusServiceUnavailable},
		{"entry_names_missing", "weight: 1", "", []string{host}, http.StatusServiceUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
			server.TLS = &tls.Config{Certificates: []tls.Certificate{ca.serverCertificate(t, c.certificate...)}, MinVersion: tls.VersionTLS12}
			server.StartTLS()
			t.Cleanup(server.Close)
			port := envoytest.FreePorts(t, 1)[0]
			names := ""
			if strings.HasPrefix(c.name, "entry") {
				names = "subjectAltNames: [\"spiffe://else/where\"]"
			}
			s := snapshotOf(t, fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: shop}
spec:
  hosts: [%s]
  location: MESH_INTERNAL
  resolution: STATIC
  %s
  ports: [{number: %d, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: %d}, %s}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: orders, namespace: shop}
spec: {host: %s, trafficPolicy: {tls: {mode: SIMPLE, caCertificates: %q%s}}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec: {egress: [{bind: 127.0.0.11, hosts: ["./*"]}]}
`, host, names, port, portOf(t, server.Listener), c.service, host, root, c.rule), "")
			f := &fixture{ca: ca}
			f.start(t, s, proxyFile{Namespace: "shop", ServiceAccount: "web", IP: clientIP, Interception: "NONE"})
			envoytest.Eventually(t, envoytest.Patience, func() error {
				status, body, err := get(t.Context(), net.JoinHostPort(clientIP, strconv.Itoa(port)), nil)
				if err != nil || status != c.want {
					return fmt.Errorf("answered with %d %q, %w, want %d", status, body, err, c.want)
				}
				return nil
			})
		})
	}
}
