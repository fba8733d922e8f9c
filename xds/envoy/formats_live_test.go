package envoy_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/view"
)

const literalRoutes = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: echo, namespace: shop}
spec:
  hosts: [echo.shop.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: PORT, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: ECHO}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: echo, namespace: shop}
spec:
  hosts: [echo.shop.mesh]
  http:
  - {match: [{uri: {prefix: /direct}}], directResponse: {status: 200, body: {string: "CANARY"}}}
  - {match: [{uri: {prefix: /redirect}}], redirect: {uri: "/CANARY", authority: "CANARY"}}
  - match: [{uri: {prefix: /rewrite}}]
    rewrite: {uri: "/CANARY", authority: "CANARY"}
    route: [{destination: {host: echo.shop.mesh}}]
  - match: [{uri: {prefix: /regex}}]
    rewrite: {uriRegexRewrite: {match: "^/regex", rewrite: "/CANARY"}}
    route: [{destination: {host: echo.shop.mesh}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: echo, namespace: shop}
spec:
  host: echo.shop.mesh
  trafficPolicy: {loadBalancer: {consistentHash: {httpCookie: {name: session, path: "/CANARY", ttl: 10s}}}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  egress: [{port: {number: PORT, name: http, protocol: HTTP}, bind: 127.0.0.1, hosts: ["./*"]}]
`

// TestLiteralsAreNotFormatted has Envoys of both ends of the range take a command
// for text where TestEveryFormatIsKnown says that it is no format.
func TestLiteralsAreNotFormatted(t *testing.T) {
	t.Parallel()
	const secret = "not-for-tenants"
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s %v", r.RequestURI, r.Host, r.Header)
	}))
	t.Cleanup(echo.Close)
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			port := envoytest.FreePorts(t, 1)[0]
			manifests := strings.NewReplacer("CANARY", canary, "PORT", strconv.Itoa(port), "ECHO", strconv.Itoa(portOf(t, echo.Listener))).Replace(literalRoutes)
			who := proxyFile{Namespace: "shop", ServiceAccount: "web", IP: "127.0.0.1", Interception: "NONE"}
			var node map[string]any
			fatalIf(t, json.Unmarshal(bootstrap(t, buildAll(view.Build(snapshotOf(t, manifests, "enableAutoMtls: false\n"), who.proxy()))), &node), "reading own JSON")
			node["admin"] = json.RawMessage(envoytest.AdminJSON)
			boot, err := json.Marshal(node)
			fatalIf(t, err, "marshaling")
			e := envoytest.Start(t, envoytest.Config{Bootstrap: boot, Version: version, Env: append(os.Environ(), "HOME="+secret)})
			envoytest.Eventually(t, envoytest.Patience, func() error {
				c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at("127.0.0.1", port))
				if err == nil {
					err = c.Close()
				}
				return err
			})
			for _, path := range []string{"/direct", "/redirect", "/rewrite", "/regex"} {
				if shown := show(t, port, path); strings.Contains(shown, secret) || !strings.Contains(shown, "ENVIRONMENT") {
					t.Errorf("%s: %s", path, shown)
				}
			}
			e.NoRejections(t)
		})
	}
}

// show is all that comes back for a path.
func show(t *testing.T, port int, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at("127.0.0.1", port)+path, http.NoBody)
	fatalIf(t, err, "making a request")
	req.Host = "echo.shop.mesh"
	resp, err := (&http.Transport{}).RoundTrip(req)
	fatalIf(t, err, "asking for %s", path)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	fatalIf(t, err, "reading")
	return fmt.Sprintf("%d %v %s", resp.StatusCode, resp.Header, body)
}
