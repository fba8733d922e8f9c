package envoy_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestUndeclaredPortsTellProtocolsApart: on a port without a protocol, plaintext HTTP is
// HTTP, and so is mTLS with the ALPN protocols that Istio's clients offer for HTTP. Everything
// else is forwarded as it is.
func TestUndeclaredPortsTellProtocolsApart(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		for _, mode := range []string{"PERMISSIVE", "STRICT", "DISABLE"} {
			t.Run(version+"_"+mode, func(t *testing.T) {
				t.Parallel()
				port := envoytest.FreePorts(t, 1)[0]
				s := snapshotOf(t, strings.NewReplacer("PORT", strconv.Itoa(port), "ECHO", strconv.Itoa(echoServer(t)), "MODE", mode).Replace(`
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: orders, namespace: shop}
spec:
  ingress: [{port: {number: PORT, name: any, protocol: ""}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:ECHO"}]
  egress: [{hosts: ["~/*"]}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: MODE}}
`), "")
				f := &fixture{ca: newAuthority(t), version: version}
				e := f.start(t, s, proxyFile{Namespace: "shop", ServiceAccount: "orders", IP: serverIP, Interception: "NONE"})
				ask := func(alpn []string, say string) (string, error) {
					var c net.Conn
					c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at(serverIP, port))
					if err != nil {
						return "", err
					}
					defer func() { _ = c.Close() }()
					_ = c.SetDeadline(time.Now().Add(envoytest.Attempt))
					if alpn != nil {
						c = tls.Client(c, &tls.Config{
							Certificates: []tls.Certificate{f.ca.pair(t, webID)}, NextProtos: alpn,
							InsecureSkipVerify: true, MinVersion: tls.VersionTLS12,
						})
					}
					if _, err := io.WriteString(c, say); err != nil {
						return "", err
					}
					text, err := io.ReadAll(bufio.NewReader(c))
					if len(text) > 0 {
						err = nil
					}
					return string(text), err
				}
				const get = "GET / HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n"
				for _, c := range []struct {
					name         string
					alpn         []string // of mTLS
					say          string
					served, http bool
				}{
					{"http", nil, get, mode != "STRICT", true},
					{"text", nil, "hello\r\n\r\n", mode != "STRICT", false},
					{"mtls", []string{"istio"}, get, mode != "DISABLE", false},
					{"mtls_http", []string{"istio-http/1.1", "istio", "http/1.1"}, get, mode != "DISABLE", true},
				} {
					if c.alpn != nil && !c.served {
						continue // the application gets the handshake, and waits for a request
					}
					envoytest.Eventually(t, envoytest.Patience, func() error {
						text, err := ask(c.alpn, c.say)
						switch {
						case !c.served && text == "" && !errors.Is(err, net.ErrClosed):
							return nil
						case c.served && strings.HasPrefix(text, "HTTP/1.1 ") && strings.Contains(text, "server: istio-envoy") == c.http:
							return nil
						default:
							return fmt.Errorf("%s: answered with %q, %w", c.name, text, err)
						}
					})
				}
				e.NoRejections(t)
			})
		}
	}
}
