package envoy_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestProxyHeaders: MeshConfig says which headers proxies write, to the application and to the
// client.
func TestProxyHeaders(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config           string
		server           string // in the answer
		has, lacks, xfcc []string
	}{
		"usual": {
			server: "envoy", has: []string{"X-Request-Id", "X-Envoy-Attempt-Count", "X-Forwarded-Client-Cert"}, lacks: []string{"X-Forwarded-Port"},
			xfcc: []string{"By=spiffe://cluster.local/ns/shop/sa/orders", "URI=spiffe://cluster.local/ns/shop/sa/web"},
		},
		"set": {
			config: "{server: {value: shop}, xForwardedPort: {enabled: true}, requestId: {disabled: true}, attemptCount: {disabled: true}, envoyDebugHeaders: {disabled: true}, forwardedClientCert: SANITIZE}",
			server: "shop", has: []string{"X-Forwarded-Port"}, lacks: []string{"X-Request-Id", "X-Envoy-Attempt-Count", "X-Forwarded-Client-Cert", "X-Envoy-Expected-Rq-Timeout-Ms"},
		},
		"off": {config: "{server: {disabled: true}, setCurrentClientCertDetails: {cert: true, uri: false}}", server: "application", xfcc: []string{"Cert="}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var got http.Header
			app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				got = r.Header
				w.Header().Set("Server", "application")
			}))
			t.Cleanup(app.Close)
			f := &fixture{version: envoytest.Default, echo: portOf(t, app.Listener)}
			if c.config != "" {
				f.meshConfig = "defaultConfig: {proxyHeaders: " + c.config + "}\n"
			}
			f.setUp(t, "")
			var server string
			envoytest.Eventually(t, envoytest.Patience, func() error {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at(clientIP, f.http), http.NoBody)
				fatalIf(t, err, "making a request")
				req.Host = "orders.shop.mesh"
				resp, err := (&http.Client{Timeout: envoytest.Patience}).Do(req)
				if err != nil {
					return err
				}
				server = resp.Header.Get("Server")
				return resp.Body.Close()
			})
			mu.Lock()
			defer mu.Unlock()
			if server != c.server {
				t.Errorf("the server is %q, not %q", server, c.server)
			}
			for _, h := range c.has {
				if got.Get(h) == "" {
					t.Errorf("there is no %s: %v", h, got)
				}
			}
			for _, h := range c.lacks {
				if got.Get(h) != "" {
					t.Errorf("there is a %s: %v", h, got)
				}
			}
			for _, want := range c.xfcc {
				if x := got.Get("X-Forwarded-Client-Cert"); !strings.Contains(x, want) {
					t.Errorf("the identity of the client is %q, without %s", x, want)
				}
			}
			f.client.NoRejections(t)
			f.server.NoRejections(t)
		})
	}
}

// TestHeaderCaseAndForwardedHost: names of headers keep their case from the client to the application
// and back if MeshConfig says so, and a request whose host is rewritten says what it was.
func TestHeaderCaseAndForwardedHost(t *testing.T) {
	t.Parallel()
	const rewrites = `---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.mesh]
  http: [{rewrite: {authority: new.shop.mesh}, route: [{destination: {host: orders.shop.mesh}}]}]
`
	for name, c := range map[string]struct {
		config           string
		request          []string // lines that the application gets
		lacks            string
		answer, noAnswer string
	}{
		"usual": {request: []string{"x-mixed: 1", "host: new.shop.mesh"}, lacks: "x-forwarded-host", answer: "x-own: 2", noAnswer: "X-oWn"},
		"kept": {
			config:  "{preserveHttp1HeaderCase: true, xForwardedHost: {enabled: true}}",
			request: []string{"X-miXed: 1", "Host: new.shop.mesh", "x-forwarded-host: orders.shop.mesh"}, lacks: "x-mixed", answer: "X-oWn: 2", noAnswer: "x-own",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			app, err := net.Listen("tcp", "127.0.0.1:0")
			fatalIf(t, err, "listening")
			t.Cleanup(func() { _ = app.Close() })
			got := make(chan string, 16)
			go func() {
				for {
					conn, err := app.Accept()
					if err != nil {
						return
					}
					go func() {
						defer conn.Close()
						head := headOf(conn)
						if strings.Contains(strings.ToLower(head), "x-mixed") {
							got <- head
						}
						_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nX-oWn: 2\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
					}()
				}
			}()
			f := &fixture{version: envoytest.Default, echo: portOf(t, app)}
			if c.config != "" {
				f.meshConfig = "defaultConfig: {proxyHeaders: " + c.config + "}\n"
			}
			f.setUp(t, rewrites)
			var answer string
			envoytest.Eventually(t, envoytest.Patience, func() error {
				conn, err := net.Dial("tcp", at(clientIP, f.http))
				if err != nil {
					return err
				}
				defer conn.Close()
				if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: orders.shop.mesh\r\nX-miXed: 1\r\n\r\n"); err != nil {
					return err
				}
				if answer = headOf(conn); !strings.HasPrefix(answer, "HTTP/1.1 200") {
					return fmt.Errorf("the answer is %q", answer)
				}
				return nil
			})
			request := <-got
			for _, line := range c.request {
				if !strings.Contains(request, "\r\n"+line+"\r\n") {
					t.Errorf("the request lacks %q: %q", line, request)
				}
			}
			if strings.Contains(request, "\r\n"+c.lacks) {
				t.Errorf("the request has %q: %q", c.lacks, request)
			}
			if !strings.Contains(answer, c.answer) || strings.Contains(answer, c.noAnswer) {
				t.Errorf("the answer is %q, want %q and no %q", answer, c.answer, c.noAnswer)
			}
			f.client.NoRejections(t)
			f.server.NoRejections(t)
		})
	}
}

// headOf reads a request or an answer up to its body.
func headOf(r io.Reader) string {
	var head strings.Builder
	for b := make([]byte, 1); !strings.HasSuffix(head.String(), "\r\n\r\n"); {
		if _, err := r.Read(b); err != nil {
			break
		}
		head.WriteByte(b[0])
	}
	return head.String()
}
