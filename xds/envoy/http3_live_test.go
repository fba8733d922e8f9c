package envoy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/fairlead/fairlead/agent/workload"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// askHTTP3 asks a server at an address by HTTP/3, with the host of the URL as server name. The headers of the
// answer have the serial number of the server's certificate.
func askHTTP3(ctx context.Context, address, url string, roots *x509.CertPool) (gatewayAnswer, error) {
	transport := &http3.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13},
		Dial: func(ctx context.Context, _ string, t *tls.Config, q *quic.Config) (*quic.Conn, error) {
			return quic.DialAddr(ctx, address, t, q)
		},
	}
	defer func() { _ = transport.Close() }()
	return askBy(ctx, transport, url)
}

func askBy(ctx context.Context, transport http.RoundTripper, url string) (gatewayAnswer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return gatewayAnswer{}, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return gatewayAnswer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	a := gatewayAnswer{status: resp.StatusCode, headers: map[string]string{}, body: string(body), text: fmt.Sprint(resp, string(body))}
	for name, values := range resp.Header {
		a.headers[strings.ToLower(name)] = strings.Join(values, ",")
	}
	a.headers["x-certificate"] = resp.TLS.PeerCertificates[0].SerialNumber.String()
	return a, err
}

func (g *gatewayRun) http3(ctx context.Context, c *gatewayCase) (gatewayAnswer, error) {
	port := g.ports[udp+net.JoinHostPort(via(c), "443")]
	if port == 0 {
		port = 1 // nobody listens there
	}
	return askHTTP3(ctx, at(serverIP, port), c.HTTP3, g.ca.pool())
}

const quicMesh = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: PORT, name: good, protocol: HTTPS}, bind: 127.0.0.12, hosts: [good.example.com], tls: {mode: SIMPLE, credentialName: good}}
  - {port: {number: PORT, name: late, protocol: HTTPS}, bind: 127.0.0.12, hosts: [late.example.com], tls: {mode: SIMPLE, credentialName: late}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: edge}
spec:
  hosts: [good.example.com, late.example.com]
  gateways: [edge]
  http: [{directResponse: {status: 200, body: {string: hello}}}]
`

// TestHTTP3WithoutACertificate: a server whose certificate is missing fails its own handshakes, by TCP and by
// QUIC, and those of no other server of the port. It serves both once the certificate is there.
func TestHTTP3WithoutACertificate(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			envoytest.BinaryVersion(t, version) // or skip, before anything runs
			dir, ca := t.TempDir(), newAuthority(t)
			put := func(name string) {
				t.Helper()
				folder := filepath.Join(dir, name+".new")
				fatalIf(t, os.MkdirAll(folder, 0o750), "making a folder")
				c := ca.leaf(t, 30, edgeID, ecKey(t), time.Hour)
				key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
				fatalIf(t, err, "writing a key")
				for file, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, "tls.key": {Type: "PRIVATE KEY", Bytes: key}} {
					fatalIf(t, os.WriteFile(filepath.Join(folder, file), pem.EncodeToMemory(block), 0o600), "writing %q", file)
				}
				fatalIf(t, os.Rename(folder, filepath.Join(dir, name)), "renaming")
			}
			put("good")
			port := envoytest.FreePorts(t, 1)[0]
			s := snapshotOf(t, strings.ReplaceAll(quicMesh, "PORT", strconv.Itoa(port)), "")
			v := view.Settings{QUICListeners: true}.NewIndex(s).Build(edgeProxy().proxy())
			e := startWithSecrets(t, v, version, secretServerWith(t, workload.Config{CredentialsDir: dir}))
			byTCP := func(host string) error {
				body, err := callTLS(t.Context(), at(serverIP, port), &tls.Config{RootCAs: ca.pool(), ServerName: host, MinVersion: tls.VersionTLS12})
				if err == nil && body != "hello" {
					err = fmt.Errorf("%s: %q", host, body)
				}
				return err
			}
			byQUIC := func(host string) error {
				ctx, cancel := context.WithTimeout(t.Context(), envoytest.Patience)
				defer cancel()
				a, err := askHTTP3(ctx, at(serverIP, port), "https://"+host+"/", ca.pool())
				if want := fmt.Sprintf("h3=\":%d\"; ma=86400", port); err == nil && (a.body != "hello" || a.headers["alt-svc"] != want) {
					err = fmt.Errorf("%s: %s", host, a.text)
				}
				return err
			}
			for _, ask := range []func(string) error{byTCP, byQUIC} {
				envoytest.Eventually(t, envoytest.Patience, func() error { return ask("good.example.com") })
				if err := ask("late.example.com"); err == nil {
					t.Error("a server without a certificate answers")
				}
			}
			put("late")
			for _, ask := range []func(string) error{byTCP, byQUIC} {
				envoytest.Eventually(t, envoytest.Patience, func() error { return ask("late.example.com") })
			}
			e.NoRejections(t)
		})
	}
}

// TestHTTP3Connections: an edit of a server leaves the connections of others alone, over QUIC, too. A session
// resumes, but requests before the end of its handshake are not taken.
func TestHTTP3Connections(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			envoytest.BinaryVersion(t, version) // or skip, before anything runs
			ca, port := newAuthority(t), envoytest.FreePorts(t, 1)[0]
			file := filepath.Join(t.TempDir(), "listeners.json")
			var listeners []byte
			write := func(body []byte) {
				t.Helper()
				fatalIf(t, os.WriteFile(file+".new", body, 0o600), "writing listeners")
				fatalIf(t, os.Rename(file+".new", file), "writing listeners")
			}
			f := &fixture{ca: ca, version: version, settings: view.Settings{QUICListeners: true}}
			for _, name := range []string{"good", "late"} {
				f.secrets = append(f.secrets, keyPair(t, name, ca.leaf(t, 20, edgeID, ecKey(t), time.Hour)))
			}
			f.rewire = func(node map[string]any) { // listeners are read from a file, and read again
				static := child(node, "staticResources")
				list := children(static, "listeners")
				for _, l := range list {
					l["@type"] = envoy.ListenerType
				}
				var err error
				listeners, err = json.Marshal(map[string]any{"resources": list})
				fatalIf(t, err, "marshaling listeners")
				write(listeners)
				delete(static, "listeners")
				node["dynamicResources"] = map[string]any{"ldsConfig": map[string]any{"pathConfigSource": map[string]any{"path": file}}}
			}
			e := f.start(t, snapshotOf(t, strings.ReplaceAll(quicMesh, "PORT", strconv.Itoa(port)), ""), edgeProxy())

			var last *quic.Conn
			dials := 0
			newClient := func(cache tls.ClientSessionCache) *http3.Transport {
				c := &http3.Transport{
					TLSClientConfig: &tls.Config{RootCAs: ca.pool(), MinVersion: tls.VersionTLS13, ClientSessionCache: cache},
					Dial: func(ctx context.Context, _ string, c *tls.Config, q *quic.Config) (*quic.Conn, error) {
						conn, err := quic.DialAddrEarly(ctx, at(serverIP, port), c, q)
						dials, last = dials+1, conn
						return conn, err
					},
				}
				t.Cleanup(func() { _ = c.Close() })
				return c
			}
			ask := func(c *http3.Transport) error {
				a, err := askBy(t.Context(), c, "https://good.example.com/")
				if err == nil && a.body != "hello" {
					err = errors.New(a.text)
				}
				return err
			}
			cache := tls.NewLRUClientSessionCache(1)
			client := newClient(cache)
			envoytest.Eventually(t, envoytest.Patience, func() error { return ask(client) })
			before := dials
			write(bytes.ReplaceAll(listeners, []byte("late.example.com"), []byte("later.example.com")))
			envoytest.Eventually(t, envoytest.Patience, func() error {
				if n := e.Stat(t, "listener_manager.listener_in_place_updated"); n != 2 {
					return fmt.Errorf("%d listeners have other chains, want that of TCP and that of QUIC", n)
				}
				return nil
			})
			if err := ask(client); err != nil || dials != before {
				t.Errorf("after an edit of another server: %v, %d connections more", err, dials-before)
			}
			fatalIf(t, ask(newClient(cache)), "asking by a resumed session")
			<-last.HandshakeComplete()
			if s := last.ConnectionState(); !s.TLS.DidResume || s.Used0RTT {
				t.Errorf("resumed: %v, with early data: %v", s.TLS.DidResume, s.Used0RTT)
			}
			e.NoRejections(t)
		})
	}
}
