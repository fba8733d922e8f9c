package envoy_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/view"
)

// ingressTLSMesh is a workload of which two ports end TLS, and one would but for mTLS of the mesh.
const ingressTLSMesh = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {selector: {matchLabels: {app: web}}, mtls: {mode: DISABLE}, portLevelMtls: {MESH: {mode: STRICT}}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  ingress:
  - port: {number: HTTPS, name: https, protocol: HTTPS}
    bind: 127.0.0.12
    defaultEndpoint: 127.0.0.1:ECHO
    tls: {mode: SIMPLE, serverCertificate: DIR/tls.crt, privateKey: DIR/tls.key, minProtocolVersion: TLSV1_3}
  - port: {number: TLS, name: tls, protocol: TLS}
    bind: 127.0.0.12
    defaultEndpoint: 127.0.0.1:LINES
    tls: {mode: MUTUAL, serverCertificate: DIR/tls.crt, privateKey: DIR/tls.key, caCertificates: DIR/ca.crt, verifyCertificateHash: ["0000000000000000000000000000000000000000000000000000000000000000"]}
  - port: {number: MESH, name: https-mesh, protocol: HTTPS}
    bind: 127.0.0.12
    defaultEndpoint: 127.0.0.1:ECHO
    tls: {mode: SIMPLE, serverCertificate: DIR/tls.crt, privateKey: DIR/tls.key}
  egress: [{hosts: ["~/*"]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: web, namespace: shop}
spec: {selector: {matchLabels: {app: web}}, action: DENY, rules: [{to: [{operation: {paths: [/closed], ports: ["HTTPS"]}}]}]}
`

// TestSidecarsEndTLS: a port of a Sidecar with tls ends it with the certificate of a file, at a port without
// mTLS of the mesh; policies are in force there; MUTUAL takes clients of its own authority only; and a
// port with mTLS of the mesh has that. A hash of certificates has no effect there, as in Istio.
func TestSidecarsEndTLS(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			envoytest.BinaryVersion(t, version) // or skip, before anything runs
			dir, own, f := t.TempDir(), newAuthority(t), &fixture{ca: newAuthority(t), version: version}
			cert, key := own.identity(t, "spiffe://outside/web")
			for name, text := range map[string]string{"tls.crt": cert, "tls.key": key, "ca.crt": own.rootPEM()} {
				fatalIf(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600), "writing %q", name)
			}
			ports := envoytest.FreePorts(t, 3)
			m := strings.NewReplacer("number: HTTPS", "number: "+strconv.Itoa(ports[0]), `"HTTPS"`, strconv.Quote(strconv.Itoa(ports[0])), "number: TLS", "number: "+strconv.Itoa(ports[1]), "MESH", strconv.Itoa(ports[2]),
				"DIR", dir, "ECHO", strconv.Itoa(echoServer(t)), "LINES", strconv.Itoa(lineServer(t))).Replace(ingressTLSMesh)
			f.start(t, snapshotOf(t, m, ""), proxyFile{Namespace: "shop", ServiceAccount: "web", IP: serverIP, Interception: "NONE", Labels: map[string]string{"app": "web"}})
			at := func(i int) string { return net.JoinHostPort(serverIP, strconv.Itoa(ports[i])) }
			pool := x509.NewCertPool()
			pool.AddCert(own.cert)
			// the certificate has a URI and no name of a host
			trusting := func(with ...tls.Certificate) *tls.Config {
				return &tls.Config{
					Certificates: with, InsecureSkipVerify: true,
					VerifyConnection: func(s tls.ConnectionState) error {
						_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool})
						return err
					},
				}
			}
			status := func(path string, c *tls.Config) (int, error) {
				client := &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+at(0)+path, http.NoBody)
				fatalIf(t, err, "making a request")
				resp, err := client.Do(req)
				if err != nil {
					return 0, err
				}
				defer resp.Body.Close()
				_, err = io.Copy(io.Discard, resp.Body)
				return resp.StatusCode, err
			}
			envoytest.Eventually(t, envoytest.Patience, func() error {
				if got, err := status("/", trusting()); err != nil || got != http.StatusOK {
					return fmt.Errorf("answered with %d, %w", got, err)
				}
				return nil
			})
			if got, err := status("/closed", trusting()); err != nil || got != http.StatusForbidden {
				t.Errorf("what a policy denies is answered with %d, %v", got, err)
			}
			old := trusting()
			old.MaxVersion = tls.VersionTLS12
			if got, err := status("/", old); err == nil {
				t.Errorf("TLS 1.2 is answered with %d", got)
			}
			if _, _, err := get(t.Context(), at(0), nil); err == nil {
				t.Error("plaintext is answered")
			}
			if _, err := lineByTLS(t.Context(), at(1), trusting(own.pair(t, "spiffe://outside/a"))); err != nil {
				t.Errorf("a client of the authority: %v", err)
			}
			for name, c := range map[string]*tls.Config{"none": trusting(), "of the mesh": trusting(f.ca.pair(t, webID))} {
				if _, err := lineByTLS(t.Context(), at(1), c); err == nil {
					t.Errorf("MUTUAL takes a client with a certificate: %s", name)
				}
			}
			mesh := &tls.Config{Certificates: []tls.Certificate{f.ca.pair(t, webID)}, NextProtos: []string{"istio-http/1.1"}, InsecureSkipVerify: true}
			conn, err := (&tls.Dialer{Config: mesh}).DialContext(t.Context(), "tcp", at(2))
			if err != nil {
				t.Fatalf("mTLS of the mesh: %v", err)
			}
			defer conn.Close()
			secured, ok := conn.(*tls.Conn)
			if !ok || secured.ConnectionState().PeerCertificates[0].CheckSignatureFrom(f.ca.cert) != nil {
				t.Error("a port with mTLS of the mesh shows another certificate")
			}
		})
	}
}

// TestCertificatesOfSidecarsRotate: beside an agent, the certificate of a port is a secret. A new one is used
// without a restart, and a file that does not exist stops no other port.
func TestCertificatesOfSidecarsRotate(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			envoytest.BinaryVersion(t, version) // or skip, before anything runs
			dir, ca := t.TempDir(), newAuthority(t)
			rotate := func(id string) {
				t.Helper()
				cert, key := ca.identity(t, id)
				for name, text := range map[string]string{"tls.key": key, "tls.crt": cert} {
					path := filepath.Join(dir, name)
					fatalIf(t, os.WriteFile(path+".new", []byte(text), 0o600), "writing %q", path)
					fatalIf(t, os.Rename(path+".new", path), "writing %q", path)
				}
			}
			rotate("spiffe://one/a")
			ports := envoytest.FreePorts(t, 2)
			s := snapshotOf(t, strings.NewReplacer("FIRST", strconv.Itoa(ports[0]), "SECOND", strconv.Itoa(ports[1]), "DIR", dir, "LINES", strconv.Itoa(lineServer(t))).Replace(`
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: DISABLE}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  ingress:
  - port: {number: FIRST, name: tls, protocol: TLS}
    bind: 127.0.0.12
    defaultEndpoint: 127.0.0.1:LINES
    tls: {mode: SIMPLE, serverCertificate: DIR/tls.crt, privateKey: DIR/tls.key}
  - port: {number: SECOND, name: tls-broken, protocol: TLS}
    bind: 127.0.0.12
    defaultEndpoint: 127.0.0.1:LINES
    tls: {mode: SIMPLE, serverCertificate: DIR/absent.crt, privateKey: DIR/absent.key}
  egress: [{hosts: ["~/*"]}]
`), "")
			proxy := proxyFile{Namespace: "shop", ServiceAccount: "web", IP: serverIP, Interception: "NONE"}.proxy()
			proxy.FileSecrets = true
			e := startWithSecrets(t, view.Build(s, proxy), version, secretServer(t))
			shows := func(want string) {
				t.Helper()
				envoytest.Eventually(t, envoytest.Patience, func() error {
					state, err := lineByTLS(t.Context(), net.JoinHostPort(serverIP, strconv.Itoa(ports[0])), &tls.Config{InsecureSkipVerify: true})
					if err == nil && state.PeerCertificates[0].URIs[0].String() != want {
						err = fmt.Errorf("the certificate is of %s", state.PeerCertificates[0].URIs[0])
					}
					return err
				})
			}
			shows("spiffe://one/a")
			if _, err := lineByTLS(t.Context(), net.JoinHostPort(serverIP, strconv.Itoa(ports[1])), &tls.Config{InsecureSkipVerify: true}); err == nil {
				t.Error("a port without a certificate takes connections")
			}
			rotate("spiffe://two/b")
			shows("spiffe://two/b")
			e.NoRejections(t)
		})
	}
}
