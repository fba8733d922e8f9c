package envoy_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// keySet is a set of keys (JWKS) with that of the authority, and token signs claims with it.
func (a *authority) keySet(tb testing.TB) string {
	tb.Helper()
	point, err := a.key.PublicKey.Bytes()
	fatalIf(tb, err, "encoding a key")
	b64 := base64.RawURLEncoding.EncodeToString
	return fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","kid":"k","x":%q,"y":%q}]}`, b64(point[1:33]), b64(point[33:]))
}

func (a *authority) token(tb testing.TB, claims map[string]any) string {
	tb.Helper()
	body, err := json.Marshal(claims)
	fatalIf(tb, err, "encoding claims")
	b64 := base64.RawURLEncoding.EncodeToString
	signed := b64([]byte(`{"alg":"ES256","kid":"k","typ":"JWT"}`)) + "." + b64(body)
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, a.key, sum[:])
	fatalIf(tb, err, "signing a token")
	return signed + "." + b64(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}

const gatewayTokenMesh = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec:
  selector: {istio: ingressgateway}
  servers: [{bind: 127.0.0.12, port: {number: PORT, name: http, protocol: HTTP}, hosts: ["*"]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: claims, namespace: edge}
spec:
  hosts: ["claims.test"]
  gateways: [edge]
  http:
  - match: [{headers: {"@request.auth.claims.group": {exact: admin}}}]
    directResponse: {status: 200, body: {string: admin}}
  - match: [{headers: {"@request.auth.claims.groups": {prefix: dev}}}]
    directResponse: {status: 200, body: {string: list}}
  - match: [{headers: {"@request.auth.claims[a.b][c]": {regex: "d+"}}}]
    directResponse: {status: 200, body: {string: nested}}
  - match: [{headers: {"@request.auth.claims.scope": {exact: write}}}]
    directResponse: {status: 200, body: {string: word}}
  - match: [{headers: {"@request.auth.claims.email": {}}}]
    directResponse: {status: 200, body: {string: present}}
  - match: [{withoutHeaders: {"@request.auth.claims.group": {exact: guest}}, uri: {prefix: /without}}]
    directResponse: {status: 200, body: {string: without}}
  - route: [{destination: {host: echo.edge.mesh}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: only, namespace: edge}
spec:
  hosts: ["only.test"]
  gateways: [edge]
  http:
  - match: [{headers: {"@request.auth.claims.group": {exact: admin}}}]
    directResponse: {status: 200, body: {string: only}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: echo, namespace: edge}
spec:
  hosts: [echo.edge.mesh]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: ECHO}}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: edge, namespace: edge}
spec: {selector: {matchLabels: {istio: ingressgateway}}, jwtRules: [{issuer: test, jwks: 'KEYS'}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: edge, namespace: edge}
spec:
  selector: {matchLabels: {istio: ingressgateway}}
  rules:
  - to: [{operation: {notPaths: [/private, /addresses]}}]
  - from: [{source: {requestPrincipals: [test/alice]}}]
    to: [{operation: {paths: [/private]}}]
  - from: [{source: {remoteIpBlocks: [192.0.2.7], ipBlocks: [127.0.0.0/8]}}]
    to: [{operation: {paths: [/addresses]}}]
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: edge, namespace: edge}
spec:
  selector: {matchLabels: {istio: ingressgateway}}
  accessLogging: [{providers: [{name: text}]}]
`

// TestGatewayTokens: the claims of a token choose among routes of a gateway, and its subject is asked by
// policies. Without a good token the claims are not there. Each request is in the gateway's log and metrics.
func TestGatewayTokens(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			envoytest.BinaryVersion(t, version) // or skip, before anything runs
			f, dir := &fixture{ca: newAuthority(t), version: version}, t.TempDir()
			port := envoytest.FreePorts(t, 1)[0]
			m := strings.NewReplacer("PORT", strconv.Itoa(port), "ECHO", strconv.Itoa(echoServer(t)), "KEYS", f.ca.keySet(t)).Replace(gatewayTokenMesh)
			log := filepath.Join(dir, "log")
			e := f.start(t, snapshotOf(t, m, "extensionProviders: [{name: text, envoyFileAccessLog: {path: "+log+", logFormat: {text: \"%REQ(:PATH)% %RESPONSE_CODE% %ROUTE_NAME%\"}}}]\n"), edgeProxy())
			envoytest.Eventually(t, envoytest.Patience, func() error {
				_, _, err := get(t.Context(), at(serverIP, port), nil)
				return err
			})
			type claims = map[string]any
			for i, c := range []struct {
				host, path string
				claims     claims // nil for no token
				status     int
				body       string
			}{
				{"claims.test", "/", nil, 200, "host=claims.test"},
				{"claims.test", "/", claims{"group": "admin"}, 200, "admin"},
				{"claims.test:8080", "/", claims{"group": "admin"}, 200, "admin"},
				{"claims.test", "/", claims{"group": []string{"user", "admin"}}, 200, "admin"},
				{"claims.test", "/", claims{"group": "administrator"}, 200, "host="},
				{"claims.test", "/", claims{"groups": []string{"ops", "developers"}}, 200, "list"},
				{"claims.test", "/", claims{"a.b": claims{"c": "ddd"}}, 200, "nested"},
				{"claims.test", "/", claims{"scope": "read write"}, 200, "word"},
				{"claims.test", "/", claims{"email": "a@example.com"}, 200, "present"},
				{"claims.test", "/without", claims{"group": "user"}, 200, "without"},
				{"claims.test", "/without", claims{"group": "guest"}, 200, "host="},
				{"claims.test", "/without", nil, 200, "without"},
				{"claims.test", "/", claims{"group": "admin", "iss": "other"}, 401, ""},
				{"claims.test", "/", claims{"group": "admin", "exp": 1}, 401, ""},
				{"only.test", "/", claims{"group": "admin"}, 200, "only"},
				{"only.test", "/", nil, 404, ""},
				{"claims.test", "/private", claims{"sub": "alice"}, 200, "host="},
				{"claims.test", "/private", claims{"sub": "bob"}, 403, "RBAC"},
				{"claims.test", "/private", nil, 403, "RBAC"},
				{"claims.test", "/addresses", nil, 403, "RBAC"},
			} {
				token := ""
				if c.claims != nil {
					all := claims{"iss": "test", "sub": "somebody", "exp": time.Now().Add(time.Hour).Unix()}
					maps.Copy(all, c.claims)
					token = f.ca.token(t, all)
				}
				status, body, err := ask(t, port, "", fmt.Sprintf("GET %s?%d HTTP/1.1\r\nHost: %s\r\nAuthorization: %s\r\n", c.path, i, c.host, bearer(token)))
				if err != nil || status != c.status || !strings.Contains(body, c.body) {
					t.Errorf("%s%s with %v: %d %q, %v; want %d %q", c.host, c.path, c.claims, status, body, err, c.status, c.body)
				}
			}
			envoytest.Eventually(t, envoytest.Patience, func() error {
				content, err := os.ReadFile(log)
				for _, line := range []string{"/?1 200 ", "/?12 401 ", "/?15 404 ", "/private?17 403 "} {
					if !strings.Contains(string(content), "\n"+line) {
						return fmt.Errorf("no line %q in %q, %w", line, content, err)
					}
				}
				return nil
			})
			e.NoRejections(t)
		})
	}
}

func bearer(token string) string {
	if token == "" {
		return "Basic eDp5"
	}
	return "Bearer " + token
}

// ask sends a request without its end, behind something.
func ask(t *testing.T, port int, before, request string) (int, string, error) {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at(serverIP, port))
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, before+request+"Connection: close\r\n\r\n"); err != nil {
		return 0, "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// TestGatewayReadsPROXYProtocol: the client of remoteIpBlocks is who the PROXY protocol says, that of ipBlocks is
// who says so, as in Istio. Without the protocol a connection ends.
func TestGatewayReadsPROXYProtocol(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			envoytest.BinaryVersion(t, version) // or skip, before anything runs
			f := &fixture{ca: newAuthority(t), version: version}
			port := envoytest.FreePorts(t, 1)[0]
			m := strings.NewReplacer("PORT", strconv.Itoa(port), "ECHO", strconv.Itoa(echoServer(t)), "KEYS", f.ca.keySet(t), "[{providers: [{name: text}]}]", "[{disabled: true}]").Replace(gatewayTokenMesh)
			e := f.start(t, snapshotOf(t, m, "defaultConfig: {gatewayTopology: {proxyProtocol: {}}}\n"), edgeProxy())
			const v2 = "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02"
			for _, c := range []struct {
				before, path string
				status       int
			}{
				{"PROXY TCP4 192.0.2.7 192.0.2.1 1000 80\r\n", "/addresses", 200},
				{"PROXY TCP4 192.0.2.8 192.0.2.1 1000 80\r\n", "/addresses", 403},
				{v2 + "\x07\xc0\x00\x02\x01\x10\x00\x00\x50", "/addresses", 200},
				{v2 + "\x08\xc0\x00\x02\x01\x10\x00\x00\x50", "/addresses", 403},
				{"", "/", 0},
			} {
				var status int
				envoytest.Eventually(t, envoytest.Patience, func() (err error) {
					status, _, err = ask(t, port, c.before, "GET "+c.path+" HTTP/1.1\r\nHost: claims.test\r\n")
					if c.status == 0 {
						return nil
					}
					return err
				})
				if status != c.status {
					t.Errorf("%q %s: %d, want %d", c.before, c.path, status, c.status)
				}
			}
			e.NoRejections(t)
		})
	}
}
