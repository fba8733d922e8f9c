package envoy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// question is what an authorization server was asked about.
type question struct {
	path    string
	headers http.Header
	body    string
	tcp     bool
}

// authorizer is an authorization server, by HTTP and by gRPC. What it answers depends on the path:
// one with "deny" is denied, and one with "slow" is answered only when the test ends.
type authorizer struct {
	authv3.UnimplementedAuthorizationServer
	http, grpc int           // ports
	done       chan struct{} // the test ended

	mu      sync.Mutex // guards all following fields
	asked   []question
	denyTCP bool
}

const denyBody = "go away"

func newAuthorizer(t testing.TB) *authorizer {
	t.Helper()
	a := &authorizer{done: make(chan struct{})}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	a.http = portOf(t, s.Listener)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	fatalIf(t, err, "listening")
	g := grpc.NewServer()
	authv3.RegisterAuthorizationServer(g, a)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	a.grpc = portOf(t, l)
	t.Cleanup(func() { close(a.done) }) // before the servers are closed
	return a
}

func (a *authorizer) note(q question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, q)
}

// of are the questions about paths with a text.
func (a *authorizer) of(text string) []question {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(a.asked), func(q question) bool { return !strings.Contains(q.path, text) })
}

func (a *authorizer) wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-a.done:
	}
}

func (a *authorizer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.note(question{path: r.URL.Path, headers: r.Header, body: string(body)})
	for _, name := range []string{"x-user", "x-told", "x-why", "x-hidden"} {
		w.Header().Set(name, "by "+name)
	}
	switch {
	case strings.Contains(r.URL.Path, "slow"):
		a.wait(r.Context())
	case strings.Contains(r.URL.Path, "deny"):
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, denyBody)
	}
}

// Check answers by gRPC. Headers of its answers are passed on without a list of names.
func (a *authorizer) Check(ctx context.Context, r *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	of := r.GetAttributes().GetRequest().GetHttp()
	q := question{path: of.GetPath(), headers: http.Header{}, body: of.GetBody() + string(of.GetRawBody()), tcp: of == nil || of.GetMethod() == ""}
	for k, v := range of.GetHeaders() {
		q.headers.Set(k, v)
	}
	a.note(q)
	a.mu.Lock()
	denyTCP := a.denyTCP
	a.mu.Unlock()
	header := func(name string) []*corev3.HeaderValueOption {
		return []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: name, Value: "by " + name}}}
	}
	switch {
	case strings.Contains(q.path, "slow"):
		a.wait(ctx)
		return nil, errors.New("too late")
	case strings.Contains(q.path, "deny"), q.tcp && denyTCP:
		return &authv3.CheckResponse{Status: &rpcstatus.Status{Code: int32(codes.PermissionDenied)}, HttpResponse: &authv3.CheckResponse_DeniedResponse{
			DeniedResponse: &authv3.DeniedHttpResponse{Status: &typev3.HttpStatus{Code: typev3.StatusCode_Unauthorized}, Body: denyBody, Headers: header("x-why")},
		}}, nil
	}
	return &authv3.CheckResponse{Status: &rpcstatus.Status{}, HttpResponse: &authv3.CheckResponse_OkResponse{
		OkResponse: &authv3.OkHttpResponse{Headers: header("x-user")},
	}}, nil
}

// received is what an application tells of the request that it got.
type received struct {
	Headers http.Header
	Body    string
}

func tellingServer(t testing.TB) int {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_ = json.NewEncoder(w).Encode(received{r.Header, string(body)})
	}))
	t.Cleanup(s.Close)
	return portOf(t, s.Listener)
}

// askedHost is a host whose workload has CUSTOM policies, with its application behind it.
type askedHost struct {
	*fixture
	settings string // MeshConfig
	more     string // manifests
}

// askedMesh leaves the providers' services out of the workload's egress.
const askedMesh = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: orders, namespace: shop}
spec:
  ingress:
  - {port: {number: HTTPPORT, name: http, protocol: HTTP}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:ECHO"}
  - {port: {number: TCPPORT, name: tcp, protocol: TCP}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:LINES"}
  egress: [{hosts: ["~/*"]}]
`

func newAsked(t testing.TB, version string) *askedHost {
	t.Helper()
	ports := envoytest.FreePorts(t, 2)
	a := &askedHost{fixture: &fixture{ca: newAuthority(t), http: ports[0], tcp: ports[1], version: version}}
	a.echo, a.lines = tellingServer(t), lineServer(t)
	a.settings = "extensionProviders:\n"
	return a
}

// serve adds a service of an authorization server, in another namespace and outside of the mesh.
func (a *askedHost) serve(host string, port int) {
	a.more += fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: auth}
spec: {hosts: [%[1]s], location: MESH_EXTERNAL, resolution: STATIC, ports: [{number: 9000, name: http, protocol: HTTP}], endpoints: [{address: 127.0.0.1, ports: {http: %[2]d}}]}
`, host, port)
}

// provide adds a provider, and a policy that asks it about a path of its name.
func (a *askedHost) provide(name, kind, host, spec string) {
	a.settings += fmt.Sprintf("- {name: %s, %s: {service: %s, port: 9000, %s}}\n", name, kind, host, spec)
	a.custom(name, name, fmt.Sprintf(`{to: [{operation: {ports: ["%d"], paths: ["/%s", "/%s/*"]}}]}`, a.http, name, name))
}

// custom adds a policy with a rule.
func (a *askedHost) custom(name, provider, rule string) {
	a.more += fmt.Sprintf(`---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: %s, namespace: shop}
spec: {action: CUSTOM, provider: {name: %s}, rules: [%s]}
`, name, provider, rule)
}

// run starts the Envoy, and waits for it.
func (a *askedHost) run(t testing.TB) {
	t.Helper()
	a.server = a.start(t, a.snapshot(t), proxyFile{Namespace: "shop", ServiceAccount: "orders", IP: serverIP, Interception: "NONE"})
	envoytest.Eventually(t, envoytest.Patience, func() error {
		status, _, _, err := a.ask(t, http.MethodGet, "/free", "", nil)
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("%d, %w", status, err)
		}
		return nil
	})
}

func (a *askedHost) snapshot(t testing.TB) *mesh.Snapshot {
	t.Helper()
	manifests := askedMesh + a.more
	for name, port := range map[string]int{"HTTPPORT": a.http, "TCPPORT": a.tcp, "ECHO": a.echo, "LINES": a.lines} {
		manifests = strings.ReplaceAll(manifests, name, strconv.Itoa(port))
	}
	return snapshotOf(t, manifests, a.settings)
}

func (a *askedHost) ask(t testing.TB, method, path, body string, header http.Header) (int, http.Header, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+at(serverIP, a.http)+path, strings.NewReader(body))
	fatalIf(t, err, "making a request")
	maps.Copy(req.Header, header)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: envoytest.Patience}
	res, err := client.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header, string(text), err
}

// extAuthzCase is a provider and a request that its policy matches.
type extAuthzCase struct {
	name, kind, spec string
	// server is the host of the service: "auth" unless it is another.
	server string
	// path follows the name of the case.
	path, body string
	headers    http.Header

	want int // status
	// text is in the body that the client gets.
	text string
	// down has headers that the client gets, and up those that the application gets; the value
	// "-" is for those that it does not get.
	down, up map[string]string
	// told has headers that the server gets, in the same way, and toldPath and toldBody the
	// path and the body.
	told               map[string]string
	toldPath, toldBody string
	// unasked means that nobody was asked.
	unasked bool
	// loses137 is for Envoy 1.37.0, which denies with 403 and without the server's headers where
	// the server speaks HTTP.
	loses137 bool
}

func extAuthzCases() []extAuthzCase {
	const httpKind, grpcKind = "envoyExtAuthzHttp", "envoyExtAuthzGrpc"
	client := http.Header{"X-Ask": {"a"}, "X-Ask-Two": {"b"}, "X-Secret": {"c"}, "X-User": {"forged"}}
	const big = "0123456789"
	return []extAuthzCase{
		{name: "plain", kind: httpKind, headers: client, want: 200, up: map[string]string{"x-user": "forged"}, told: map[string]string{"x-ask": "-", "x-secret": "-"}, toldPath: "/plain"},
		{name: "denied", kind: httpKind, path: "/deny", want: 401, text: denyBody, down: map[string]string{"x-why": "by x-why", "x-hidden": "by x-hidden"}, loses137: true},
		{name: "up", kind: httpKind, spec: `headersToUpstreamOnAllow: [X-User, "*-told"]`, headers: client, want: 200, up: map[string]string{"x-user": "by x-user", "x-told": "by x-told", "x-hidden": "-"}, down: map[string]string{"x-user": "-"}},
		{name: "down", kind: httpKind, spec: `headersToDownstreamOnAllow: ["x-to*"]`, want: 200, down: map[string]string{"x-told": "by x-told", "x-hidden": "-"}, up: map[string]string{"x-told": "-"}},
		{name: "why", kind: httpKind, spec: `headersToDownstreamOnDeny: [x-why]`, path: "/deny", want: 401, text: denyBody, down: map[string]string{"x-why": "by x-why", "x-hidden": "-"}, loses137: true},
		{name: "check", kind: httpKind, spec: `includeRequestHeadersInCheck: ["x-ask*"], includeHeadersInCheck: [x-secret]`, headers: client, want: 200, told: map[string]string{"x-ask": "a", "x-ask-two": "b", "x-secret": "-"}},
		{name: "check-old", kind: httpKind, spec: `includeHeadersInCheck: [X-Secret]`, headers: client, want: 200, told: map[string]string{"x-ask": "-", "x-secret": "c"}},
		{name: "more", kind: httpKind, spec: `includeAdditionalHeadersInCheck: {x-mesh: "50% %REQ(x-secret)% of shop", x-ask: z}`, headers: client, want: 200, told: map[string]string{"x-mesh": "50% %REQ(x-secret)% of shop", "x-ask": "z"}, up: map[string]string{"x-mesh": "-"}},
		{name: "prefix", kind: httpKind, spec: `pathPrefix: /v1/check`, want: 200, toldPath: "/v1/check/prefix"},
		{name: "no-body", kind: httpKind, body: big, want: 200, toldPath: "/no-body"},
		{name: "body", kind: httpKind, spec: `includeRequestBodyInCheck: {maxRequestBytes: 10}`, body: big, want: 200, toldBody: big},
		{name: "body-over", kind: httpKind, spec: `includeRequestBodyInCheck: {maxRequestBytes: 9}`, body: big, want: 413, unasked: true},
		{name: "body-part", kind: httpKind, spec: `includeRequestBodyInCheck: {maxRequestBytes: 4, allowPartialMessage: true}`, body: big, want: 200, toldBody: "0123"},
		{name: "slow", kind: httpKind, spec: `timeout: 0.1s`, want: 403},
		{name: "slow-status", kind: httpKind, spec: `timeout: 0.1s, statusOnError: "503"`, want: 503, loses137: true},
		{name: "slow-open", kind: httpKind, spec: `timeout: 0.1s, failOpen: true`, want: 200},
		{name: "away", kind: httpKind, server: "nobody", want: 403, unasked: true},
		{name: "away-status", kind: httpKind, server: "nobody", spec: `statusOnError: "502"`, want: 502, unasked: true, loses137: true},
		{name: "away-open", kind: httpKind, server: "nobody", spec: `failOpen: true`, want: 200, unasked: true},
		{name: "routes", kind: httpKind, spec: `clearRouteCache: true`, want: 200},
		{name: "open-deny", kind: httpKind, spec: `failOpen: true`, path: "/deny", want: 401},
		{name: "nowhere", kind: httpKind, server: "unknown", spec: `failOpen: true`, want: 403, text: "RBAC: access denied", unasked: true},
		{name: "by-namespace", kind: httpKind, server: "auth/auth", want: 200},
		{name: "other-namespace", kind: httpKind, server: "shop/auth", want: 403, unasked: true},

		{name: "g", kind: grpcKind, server: "auth-grpc", headers: client, want: 200, up: map[string]string{"x-user": "by x-user"}, told: map[string]string{"x-secret": "c"}, toldPath: "/g"},
		{name: "g-denied", kind: grpcKind, server: "auth-grpc", path: "/deny", want: 401, text: denyBody, down: map[string]string{"x-why": "by x-why"}},
		{name: "g-body", kind: grpcKind, server: "auth-grpc", spec: `includeRequestBodyInCheck: {maxRequestBytes: 4, allowPartialMessage: true}`, body: big, want: 200, toldBody: "0123"},
		{name: "g-bytes", kind: grpcKind, server: "auth-grpc", spec: `includeRequestBodyInCheck: {maxRequestBytes: 100, packAsBytes: true}`, body: "\xff\xfe", want: 200, toldBody: "\xff\xfe"},
		{name: "g-slow", kind: grpcKind, server: "auth-grpc", spec: `timeout: 0.1s`, want: 403},
		{name: "g-slow-status", kind: grpcKind, server: "auth-grpc", spec: `timeout: 0.1s, statusOnError: "504"`, want: 504},
		{name: "g-slow-open", kind: grpcKind, server: "auth-grpc", spec: `timeout: 0.1s, failOpen: true`, want: 200},
		{name: "g-away", kind: grpcKind, server: "nobody", want: 403, unasked: true},
		{name: "g-away-open", kind: grpcKind, server: "nobody", spec: `failOpen: true`, want: 200, unasked: true},
		{name: "g-routes", kind: grpcKind, server: "auth-grpc", spec: `clearRouteCache: true`, want: 200},
	}
}

// TestExtAuthz has Envoys of all releases ask authorization servers, with each setting of a
// provider. All providers are of one workload; each is asked about its own path only.
func TestExtAuthz(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			server, a := newAuthorizer(t), newAsked(t, version)
			a.serve("auth", server.http)
			a.serve("auth-grpc", server.grpc)
			a.serve("nobody", envoytest.FreePorts(t, 1)[0])
			for _, c := range extAuthzCases() {
				host := c.server
				if host == "" {
					host = "auth"
				}
				a.provide(c.name, c.kind, host, c.spec)
			}
			a.run(t)
			for _, c := range extAuthzCases() {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					if c.loses137 && version == "1.37.0" {
						c.down = nil
						if c.want >= http.StatusInternalServerError {
							c.want = http.StatusForbidden
						}
					}
					c.check(t, a, server)
				})
			}
		})
	}
}

func (c extAuthzCase) check(t *testing.T, a *askedHost, server *authorizer) {
	t.Helper()
	path := "/" + c.name + c.path
	status, headers, body, err := a.ask(t, http.MethodPost, path, c.body, c.headers)
	if err != nil || status != c.want || !strings.Contains(body, c.text) {
		t.Fatalf("%d %q, %v; want %d", status, body, err, c.want)
	}
	sameHeaders(t, "the client", headers, c.down)
	if status == http.StatusOK {
		var got received
		fatalIf(t, json.Unmarshal([]byte(body), &got), "reading %q", body)
		sameHeaders(t, "the application", got.Headers, c.up)
		if got.Body != strings.ToValidUTF8(c.body, "�") && !strings.Contains(c.body, "\xff") {
			t.Errorf("the application got %q", got.Body)
		}
	}
	questions := slices.DeleteFunc(server.of(c.name), func(q question) bool { return !strings.HasSuffix(q.path, path) })
	if c.unasked {
		if len(questions) > 0 {
			t.Errorf("it was asked: %+v", questions)
		}
		return
	}
	if len(questions) != 1 {
		t.Fatalf("it was asked %d times: %+v", len(questions), questions)
	}
	q := questions[0]
	sameHeaders(t, "the server", q.headers, c.told)
	if q.body != c.toldBody || c.toldPath != "" && q.path != c.toldPath {
		t.Errorf("it was told of %q with the body %q, want %q with %q", q.path, q.body, c.toldPath, c.toldBody)
	}
}

func sameHeaders(t *testing.T, who string, got http.Header, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if value == "-" {
			value = ""
		}
		if got.Get(name) != value {
			t.Errorf("%s got %s: %q, want %q", who, name, got.Get(name), value)
		}
	}
}

// TestExtAuthzOfOneProvider has a workload with one provider: its slots are those that are there
// from the start. Each rule asks, and what none matches does not. A policy that is
// only tried out cannot be written: Istio refuses it.
func TestExtAuthzOfOneProvider(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		for _, kind := range []string{"envoyExtAuthzHttp", "envoyExtAuthzGrpc"} {
			t.Run(version+"/"+kind, func(t *testing.T) {
				t.Parallel()
				server, a := newAuthorizer(t), newAsked(t, version)
				port := server.http
				if kind == "envoyExtAuthzGrpc" {
					port = server.grpc
				}
				a.serve("auth", port)
				a.provide("opa", kind, "auth", "")
				a.custom("more", "opa", fmt.Sprintf(`{to: [{operation: {ports: ["%d"], methods: [DELETE]}}]}, {to: [{operation: {ports: ["%d"], hosts: [admin.example]}}]}`, a.http, a.http))
				a.run(t)
				for i, c := range []struct {
					method, path string
					asks         bool
				}{{"GET", "/opa", true}, {"DELETE", "/any", true}, {"GET", "/any", false}, {"GET", "/opal", false}} {
					for _, suffix := range []string{"", "/deny"} {
						path := fmt.Sprintf("%s%s?%d", c.path, suffix, i)
						want := http.StatusOK
						if c.asks && suffix != "" && (c.path == "/opa" || c.method == "DELETE") {
							want = http.StatusUnauthorized
						}
						if status, _, body, err := a.ask(t, c.method, path, "", nil); err != nil || status != want {
							t.Errorf("%s %s: %d %q, %v; want %d", c.method, path, status, body, err, want)
						}
					}
				}
				for _, q := range server.of("") {
					if strings.Contains(q.path, "/opal") || q.tcp {
						t.Errorf("it was asked about %+v", q)
					}
				}
			})
		}
	}
}

// TestProvidersAreAskedAboutTheirOwn: a provider whose name begins with another's is not asked
// about the other's requests, and the other way around; a request that both match is asked of both.
func TestProvidersAreAskedAboutTheirOwn(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			one, two, a := newAuthorizer(t), newAuthorizer(t), newAsked(t, version)
			a.serve("one", one.http)
			a.serve("two", two.grpc)
			a.provide("opa", "envoyExtAuthzHttp", "one", "")
			a.provide("opa-strict", "envoyExtAuthzGrpc", "two", "")
			for _, provider := range []string{"opa", "opa-strict"} {
				a.custom("both-"+provider, provider, fmt.Sprintf(`{to: [{operation: {ports: ["%d"], paths: ["/both/*"]}}]}`, a.http))
			}
			a.run(t)
			for path, want := range map[string][2]int{"/opa/x": {1, 0}, "/opa-strict/x": {0, 1}, "/both/x": {1, 1}, "/free": {0, 0}} {
				if status, _, body, err := a.ask(t, http.MethodGet, path, "", nil); err != nil || status != http.StatusOK {
					t.Errorf("%s: %d %q, %v", path, status, body, err)
				}
				if got := [2]int{len(one.of(path)), len(two.of(path))}; got != want {
					t.Errorf("%s was asked of %v, want %v", path, got, want)
				}
			}
			for path, want := range map[string]int{"/opa/deny": 401, "/opa-strict/deny": 401, "/both/deny": 401} {
				if status, _, body, err := a.ask(t, http.MethodGet, path, "", nil); err != nil || status != want {
					t.Errorf("%s: %d %q, %v; want %d", path, status, body, err, want)
				}
			}
		})
	}
}

// TestExtAuthzOfTCP: connections are asked about by gRPC. A provider that speaks HTTP cannot be
// asked, and what its rules match is denied; so it is with one that does not exist.
func TestExtAuthzOfTCP(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		for name, c := range map[string]struct {
			kind, host, rule, spec string
			deny, want             bool
			asked                  int
		}{
			"allowed":        {"envoyExtAuthzGrpc", "grpc", `{}`, "", false, true, 1},
			"denied":         {"envoyExtAuthzGrpc", "grpc", `{}`, "", true, false, 1},
			"unmatched":      {"envoyExtAuthzGrpc", "grpc", `{from: [{source: {ipBlocks: [10.1.1.1]}}]}`, "", true, true, 0},
			"away":           {"envoyExtAuthzGrpc", "nobody", `{}`, "", false, false, 0},
			"away_open":      {"envoyExtAuthzGrpc", "nobody", `{}`, "failOpen: true", false, true, 0},
			"http":           {"envoyExtAuthzHttp", "http", `{}`, "failOpen: true", false, false, 0},
			"http_unmatched": {"envoyExtAuthzHttp", "http", `{to: [{operation: {ports: ["1"]}}]}`, "", false, true, 0},
			"missing":        {"envoyExtAuthzGrpc", "unknown", `{}`, "failOpen: true", false, false, 0},
		} {
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				server, a := newAuthorizer(t), newAsked(t, version)
				server.denyTCP = c.deny
				a.serve("http", server.http)
				a.serve("grpc", server.grpc)
				a.serve("nobody", envoytest.FreePorts(t, 1)[0])
				a.settings += fmt.Sprintf("- {name: opa, %s: {service: %s, port: 9000, %s}}\n", c.kind, c.host, c.spec)
				a.custom("tcp", "opa", c.rule)
				a.server = a.start(t, a.snapshot(t), proxyFile{Namespace: "shop", ServiceAccount: "orders", IP: serverIP, Interception: "NONE"})
				envoytest.Eventually(t, envoytest.Patience, func() error {
					if !strings.Contains(a.server.Admin(t, "/ready"), "LIVE") {
						return errors.New("not ready")
					}
					return nil
				})
				line, err := sayLine(t.Context(), at(serverIP, a.tcp))
				if got := err == nil && line == "echo hello\n"; got != c.want {
					t.Errorf("%q, %v; want %v", line, err, c.want)
				}
				if n := len(slices.DeleteFunc(server.of(""), func(q question) bool { return !q.tcp })); n != c.asked {
					t.Errorf("it was asked %d times, want %d", n, c.asked)
				}
			})
		}
	}
}

// TestExtAuthzReturns: while the authorization server is away, requests are denied. When it is
// back, they are asked again.
func TestExtAuthzReturns(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"envoyExtAuthzHttp", "envoyExtAuthzGrpc"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			a := newAsked(t, "")
			port := envoytest.FreePorts(t, 1)[0]
			a.serve("auth", port)
			a.provide("opa", kind, "auth", "")
			a.run(t)
			for round := range 3 {
				if status, _, body, err := a.ask(t, http.MethodGet, "/opa", "", nil); err != nil || status != http.StatusForbidden {
					t.Errorf("round %d, away: %d %q, %v", round, status, body, err)
				}
				stop := serveAt(t, kind, port)
				envoytest.Eventually(t, envoytest.Patience, func() error {
					status, _, body, err := a.ask(t, http.MethodGet, "/opa", "", nil)
					if err != nil || status != http.StatusOK {
						return fmt.Errorf("%d %q, %w", status, body, err)
					}
					return nil
				})
				stop()
			}
		})
	}
}

// serveAt serves at a port until it is stopped.
func serveAt(t *testing.T, kind string, port int) (stop func()) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", at("127.0.0.1", port))
	fatalIf(t, err, "listening")
	a := &authorizer{done: make(chan struct{})}
	if kind == "envoyExtAuthzGrpc" {
		g := grpc.NewServer()
		authv3.RegisterAuthorizationServer(g, a)
		go func() { _ = g.Serve(l) }()
		return g.Stop
	}
	s := &http.Server{Handler: a, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	return func() { _ = s.Close() }
}
