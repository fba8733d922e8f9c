package traffic

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/issuertest"
)

// tokenRules takes tokens of a, in the usual place, and of b, in all other ones. Keys of a are
// where KEYS is.
const tokenRules = `apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: users, namespace: shop}
spec:
  selector: {matchLabels: {app: echo}}
  jwtRules:
  - issuer: a
    audiences: [us]
    jwksUri: KEYS
    outputClaimToHeaders: [{header: x-sub, claim: sub}, {header: x-group, claim: deep.group}]
    outputPayloadToHeader: x-payload
  - issuer: b
    jwksUri: https://b.example/keys
    fromHeaders: [{name: x-token, prefix: "Token "}]
    fromParams: [token]
    fromCookies: [session]
    forwardOriginalToken: true
    spaceDelimitedClaims: [roles]
`

// tokenPolicies allow /open to everybody, and other paths by what a token says.
const tokenPolicies = `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: users, namespace: shop}
spec:
  selector: {matchLabels: {app: echo}}
  rules:
  - to: [{operation: {paths: [/open]}}]
  - to: [{operation: {paths: [/me]}}]
    from: [{source: {requestPrincipals: [a/me]}}]
  - to: [{operation: {paths: [/anybody]}}]
    from: [{source: {requestPrincipals: ["*"]}}]
  - to: [{operation: {paths: [/admins]}}]
    when: [{key: "request.auth.claims[groups]", values: [admin]}]
  - to: [{operation: {paths: [/deep]}}]
    when: [{key: "request.auth.claims[deep][group]", values: [admin]}]
  - to: [{operation: {paths: [/readers]}}]
    when: [{key: "request.auth.claims[scope]", values: [read]}]
  - to: [{operation: {paths: [/roles]}}]
    when: [{key: "request.auth.claims[roles]", values: [boss]}]
  - to: [{operation: {paths: [/presented]}}]
    when: [{key: request.auth.presenter, values: [app]}, {key: request.auth.audiences, values: [us]}, {key: request.auth.principal, values: [a/me]}]
`

// heard is what the application behind echo gets.
type heard struct {
	Header http.Header
	URL    string
}

// startTokens runs a server with rules for tokens, and echo, whose application is the test.
func startTokens(t *testing.T, keys string, server ...string) *pair {
	t.Helper()
	p := newPair(t)
	app := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(heard{r.Header, r.URL.String()})
	}))
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port("http"))))
	if err != nil {
		t.Fatal(err)
	}
	_ = app.Listener.Close()
	app.Listener = l
	app.Start()
	t.Cleanup(app.Close)
	p.Write("users.yaml", strings.ReplaceAll(tokenRules, "KEYS", keys))
	p.Write("policies.yaml", tokenPolicies)
	p.StartServer(server...)
	p.StartHost(p.echoH)
	p.AwaitLive("echo")
	return p
}

// ask asks echo on a kept connection.
func (p *pair) askWith(client *http.Client, path string, edit func(*http.Request)) (int, string, error) {
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+p.at(12, 9080)+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	if edit != nil {
		edit(req)
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}

func bearer(token string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
}

// TestTokens asks an Envoy that has its rules and keys from a server, which has the keys from
// files: what a token is good for, and what happens when keys change, break and are missing.
func TestTokens(t *testing.T) {
	t.Parallel()
	a, b := issuertest.New(t, "a", "1"), issuertest.New(t, "b", "1")
	dir := t.TempDir()
	publish := func(name, keys string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+".new", []byte(keys), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	publish("a.example/oauth2/keys.json", issuertest.KeySet(a))
	publish("b.example/keys.json", issuertest.KeySet(b))
	const keysOfA = "https://a.example/oauth2/keys"
	p := startTokens(t, keysOfA, "--jwks-dir", dir)
	client := &http.Client{Timeout: envoytest.Patience, Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	until := func(path string, edit func(*http.Request), status int, text string) {
		t.Helper()
		envoytest.Eventually(t, envoytest.Patience, func() error {
			got, body, err := p.askWith(client, path, edit)
			if err == nil && (got != status || !strings.Contains(body, text)) {
				err = fmt.Errorf("%s: %d %q, want %d with %q", path, got, body, status, text)
			}
			return err
		})
	}
	want := func(name, path string, edit func(*http.Request), status int, text string) {
		t.Helper()
		got, body, err := p.askWith(client, path, edit)
		if err != nil || got != status || !strings.Contains(body, text) {
			t.Errorf("%s: %d %q (%v), want %d with %q", name, got, body, err, status, text)
		}
	}
	const ok, no, denied = http.StatusOK, http.StatusUnauthorized, http.StatusForbidden
	with := func(i *issuertest.Issuer, claims map[string]any) func(*http.Request) { return bearer(i.Token(claims)) }
	ahead := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	until("/me", with(a, nil), ok, "X-Sub")

	// What is asked of the claims is what the filter before has written.
	want("no token", "/open", nil, ok, "")
	want("no token where one is needed", "/anybody", nil, denied, "RBAC")
	want("another subject", "/me", with(a, map[string]any{"sub": "you"}), denied, "RBAC")
	want("any subject", "/anybody", with(a, map[string]any{"sub": "you"}), ok, "")
	want("no subject", "/anybody", with(a, map[string]any{"sub": nil}), denied, "RBAC")
	want("groups", "/admins", with(a, map[string]any{"groups": []string{"x", "admin"}}), ok, "")
	want("other groups", "/admins", with(a, map[string]any{"groups": []string{"x"}}), denied, "RBAC")
	want("a claim in a claim", "/deep", with(a, map[string]any{"deep": map[string]any{"group": "admin"}}), ok, `"X-Group":["admin"]`)
	want("words of a scope", "/readers", with(a, map[string]any{"scope": "write read"}), ok, "")
	want("part of a word", "/readers", with(a, map[string]any{"scope": "write reader"}), denied, "RBAC")
	want("no words of another claim", "/roles", with(a, map[string]any{"roles": "x boss"}), denied, "RBAC")
	want("presenter, audience and principal", "/presented", with(a, map[string]any{"azp": "app"}), ok, "")
	want("another presenter", "/presented", with(a, map[string]any{"azp": "other"}), denied, "RBAC")

	// Bad tokens are refused, also where none is needed.
	for name, token := range map[string]string{
		"expired":           a.Token(map[string]any{"exp": ahead(-time.Hour)}),
		"not yet valid":     a.Token(map[string]any{"nbf": ahead(time.Hour)}),
		"issuer unknown":    issuertest.New(t, "c", "1").Token(nil),
		"key of nobody":     issuertest.New(t, "a", "1").Token(nil),
		"issuer of another": b.Token(map[string]any{"iss": "a"}),
		"no text":           "x",
	} {
		want(name, "/open", bearer(token), no, "")
	}
	want("other audience", "/open", with(a, map[string]any{"aud": "them"}), denied, "Audiences in Jwt are not allowed")
	head := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","kid":"1"}`))
	want("alg none", "/open", bearer(head+"."+strings.Split(a.Token(nil), ".")[1]+"."), no, "")

	// Envoy takes 60 KiB of headers.
	large := func(i *issuertest.Issuer, bytes int) func(*http.Request) {
		return with(i, map[string]any{"more": strings.Repeat("x", bytes)})
	}
	want("a large token", "/me", large(a, 40<<10), ok, "X-Sub")
	want("a large token of nobody", "/open", large(issuertest.New(t, "a", "1"), 40<<10), no, "")
	want("a token that is too large", "/open", large(a, 60<<10), http.StatusRequestHeaderFieldsTooLarge, "")

	// Where b's are looked for, and what of a token the application gets.
	token := b.Token(map[string]any{"roles": "x boss"})
	want("header with a prefix", "/roles", func(r *http.Request) { r.Header.Set("X-Token", "Token "+token) }, ok, `"X-Token":["Token `)
	want("header without it", "/open", func(r *http.Request) { r.Header.Set("X-Token", b.Token(nil)) }, ok, "")
	want("and so no token", "/anybody", func(r *http.Request) { r.Header.Set("X-Token", b.Token(nil)) }, denied, "RBAC")
	want("parameter", "/roles?token="+token, nil, ok, "token=")
	want("cookie", "/roles", func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "session", Value: token}) }, ok, "session=")
	want("bad cookie", "/open", func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "session", Value: a.Token(nil)}) }, no, "")
	want("b's token in a's place", "/open", bearer(token), no, "")
	code, body, err := p.askWith(client, "/me", func(r *http.Request) {
		bearer(a.Token(nil))(r)
		r.Header.Set("X-Sub", "forged")
		r.Header.Set("X-Payload", "forged")
	})
	var got heard
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(code, body, err)
	}
	payload, err2 := base64.RawURLEncoding.DecodeString(got.Header.Get("X-Payload"))
	if err != nil || err2 != nil || code != ok || fmt.Sprint(got.Header["X-Sub"]) != "[me]" || !strings.Contains(string(payload), `"sub":"me"`) || got.Header.Get("Authorization") != "" {
		t.Errorf("the application gets %v (%s), %d, %v", got.Header, payload, code, err)
	}
	want("headers of a client without a token", "/open", func(r *http.Request) { r.Header.Set("X-Sub", "forged") }, ok, `{"Header":{`)
	if _, body, _ := p.askWith(client, "/open", func(r *http.Request) { r.Header.Set("X-Sub", "forged") }); strings.Contains(body, "forged") {
		t.Errorf("a client without a token says what a token says: %s", body)
	}

	// Rotation: on the connection that is there, and without a new listener.
	next := issuertest.New(t, "a", "2")
	var fresh atomic.Int32
	kept := func(i *issuertest.Issuer) func(*http.Request) {
		return func(r *http.Request) {
			bearer(i.Token(nil))(r)
			*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
				if !c.Reused {
					fresh.Add(1)
				}
			}}))
		}
	}
	publish("a.example/oauth2/keys.json", issuertest.KeySet(a, next))
	until("/me", kept(next), ok, "")
	want("the old key beside the new one", "/me", kept(a), ok, "")
	publish("a.example/oauth2/keys.json", issuertest.KeySet(next))
	until("/open", kept(a), no, "")
	want("the new key", "/me", kept(next), ok, "")
	if n := fresh.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}

	// What is no key set changes nothing, also over a restart of the server.
	publish("a.example/oauth2/keys.json", "{")
	p.awaitKeys(t, keysOfA, "stale", "not JSON")
	want("with a broken key set", "/me", kept(next), ok, "")
	if err := os.RemoveAll(filepath.Join(dir, "a.example")); err != nil {
		t.Fatal(err)
	}
	p.awaitKeys(t, keysOfA, "stale", "no such file")
	want("without a key set", "/me", kept(next), ok, "")
	p.Server.Stop()
	p.StartServer("--jwks-dir", dir)
	p.AwaitLive("echo")
	p.Edit("users.yaml", "audiences: [us]", "audiences: [us, others]")
	until("/me", with(next, map[string]any{"aud": "others"}), ok, "")

	// A set without keys takes them back.
	publish("a.example/oauth2/keys.json", `{"keys":[]}`)
	until("/open", with(next, nil), no, "Jwks doesn't have any valid public key")
	p.awaitKeys(t, keysOfA, "none", "no key of the set can be used")
	want("no token with an empty key set", "/open", nil, ok, "")
	want("another issuer beside an empty key set", "/open?token="+token, nil, ok, "")
	publish("a.example/oauth2/keys.json", issuertest.KeySet(next))
	until("/me", with(next, nil), ok, "")

	// Keys that everybody has are refused at once.
	publish("a.example/oauth2/keys.json", issuertest.PrivateKeySet(next))
	until("/open", with(next, nil), no, "")
	want("no token then", "/open", nil, ok, "")
	want("another issuer then", "/open?token="+token, nil, ok, "")
	publish("a.example/oauth2/keys.json", issuertest.KeySet(next))
	until("/me", with(next, nil), ok, "")

	// Keys that were never there.
	p.Edit("users.yaml", "https://a.example/oauth2/keys", "https://nobody.example/keys")
	until("/open", with(next, nil), no, "Jwks doesn't have any valid public key")
	want("no token without keys", "/open", nil, ok, "")
	want("another issuer without keys", "/open?token="+token, nil, ok, "")
	p.awaitKeys(t, "https://nobody.example/keys", "none", "no such file")
	out, err := p.CLI("proxy-status", "--run-dir", p.RunDir("server"))
	if err == nil || !strings.Contains(out, "the keys of https://nobody.example/keys (tokens of a) are not known") {
		t.Errorf("proxy-status does not tell of it: %v\n%s", err, out)
	}
}

// TestIssuerAway: a server that starts while an issuer is away has the keys from its disk. It
// fetches by a proxy, because it fetches nothing from this machine.
func TestIssuerAway(t *testing.T) {
	t.Parallel()
	a := issuertest.New(t, "a", "1")
	var away atomic.Bool
	var asked atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if away.Load() || r.URL.String() != "http://login.example/keys" {
			http.Error(w, "not here", http.StatusBadGateway)
			return
		}
		_, _ = io.WriteString(w, issuertest.KeySet(a))
	}))
	t.Cleanup(proxy.Close)
	p := startTokens(t, "http://login.example/keys", "--jwks-proxy", proxy.URL)
	client := &http.Client{Timeout: envoytest.Patience, Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	until := func(claims map[string]any) {
		t.Helper()
		envoytest.Eventually(t, envoytest.Patience, func() error {
			code, body, err := p.askWith(client, "/me", bearer(a.Token(claims)))
			if err == nil && code != http.StatusOK {
				err = fmt.Errorf("%d %s", code, body)
			}
			return err
		})
	}
	until(nil)
	p.Server.Stop()
	away.Store(true)
	before := asked.Load()
	p.StartServer("--jwks-proxy", proxy.URL)
	p.AwaitLive("echo")
	p.awaitKeys(t, "http://login.example/keys", "stale", "502")
	if asked.Load() == before {
		t.Error("the issuer was not asked")
	}
	p.Edit("users.yaml", "audiences: [us]", "audiences: [others]")
	until(map[string]any{"aud": "others"})
}

// awaitKeys waits until a key set of the server stands so.
func (p *pair) awaitKeys(t *testing.T, uri, state, err string) {
	t.Helper()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		out, failed := p.Admin("server", "/v1/sources")
		if failed != nil {
			return failed
		}
		var sources struct {
			Keys struct {
				Sets []struct{ URI, State, Err string }
			}
		}
		if failed := json.Unmarshal([]byte(out), &sources); failed != nil {
			return failed
		}
		for _, k := range sources.Keys.Sets {
			if k.URI == uri && k.State == state && strings.Contains(k.Err, err) {
				return nil
			}
		}
		return fmt.Errorf("no key set %s is %s with %q: %+v", uri, state, err, sources)
	})
}
