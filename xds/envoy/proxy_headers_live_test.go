package envoy_test

import (
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
