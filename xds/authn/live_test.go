package authn_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/protobuf/encoding/protojson"
	securityv1 "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pki/jwks"
	"github.com/fairlead/fairlead/xds/authn"
)

// filterFile is a file from which an Envoy has the configuration of its filter, as by ECDS.
type filterFile struct {
	path    string
	version int
}

func (f *filterFile) set(t *testing.T, rules ...authn.Rule) {
	t.Helper()
	config, err := protojson.Marshal(authn.Filter(rules, false))
	if err != nil {
		t.Fatal(err)
	}
	typed := `{"@type":"type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",` + string(config[1:])
	f.version++
	doc := fmt.Sprintf(`{"version_info":"%d","resources":[{"@type":"type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig","name":"jwt","typed_config":%s}]}`, f.version, typed)
	// Envoy notices a file that is moved there.
	if err := os.WriteFile(f.path+".new", []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(f.path+".new", f.path); err != nil {
		t.Fatal(err)
	}
}

const ecdsBootstrap = `{
 "admin": %s,
 "node": {"id": "x", "cluster": "x"},
 "static_resources": {
  "listeners": [{"name": "in", "address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}}, "filter_chains": [{"filters": [{
   "name": "envoy.filters.network.http_connection_manager", "typed_config": {
    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "in",
    "route_config": {"virtual_hosts": [{"name": "x", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "app"}}]}]},
    "http_filters": [
     {"name": "jwt", "config_discovery": {"config_source": {"path_config_source": {"path": %q}, "initial_fetch_timeout": "0s"},
      "type_urls": ["type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"]}},
     {"name": "envoy.filters.http.router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}],
  "clusters": [{"name": "app", "type": "STATIC", "connect_timeout": "5s", "load_assignment": {"cluster_name": "app", "endpoints": [{"lb_endpoints": [{"endpoint":
   {"address": {"socket_address": {"address": "127.0.0.1", "port_value": %s}}}}]}]}}]}}`

// issuer signs tokens.
type issuer struct {
	name string
	kid  string
	key  crypto.Signer
	alg  jose.SignatureAlgorithm
}

func newIssuer(t *testing.T, name, kid string, alg jose.SignatureAlgorithm) issuer {
	t.Helper()
	var key crypto.Signer
	var err error
	if alg == jose.ES256 {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	} else {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	return issuer{name, kid, key, alg}
}

// keys is the set of the issuers' keys as proxies get it.
func keys(t *testing.T, issuers ...issuer) string {
	t.Helper()
	var set jose.JSONWebKeySet
	for _, i := range issuers {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: i.key.Public(), KeyID: i.kid})
	}
	doc, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	parsed, unusable, err := jwks.Parse(doc)
	if err != nil || len(unusable) > 0 {
		t.Fatal(err, unusable)
	}
	return parsed.JSON
}

// token is signed by the issuer; edit changes its claims.
func (i issuer) token(t *testing.T, edit ...map[string]any) string {
	t.Helper()
	claims := map[string]any{"iss": i.name, "sub": "me", "exp": time.Now().Add(time.Hour).Unix(), "aud": "us"}
	for _, e := range edit {
		maps.Copy(claims, e)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: i.alg, Key: jose.JSONWebKey{Key: i.key, KeyID: i.kid}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// forged has another header than the one that was signed, and a signature made by sign.
func (i issuer) forged(t *testing.T, header map[string]any, sign func(text string) []byte) string {
	t.Helper()
	head, _ := json.Marshal(header)
	payload, _ := json.Marshal(map[string]any{"iss": i.name, "sub": "me", "exp": time.Now().Add(time.Hour).Unix(), "aud": "us"})
	text := base64.RawURLEncoding.EncodeToString(head) + "." + base64.RawURLEncoding.EncodeToString(payload)
	return text + "." + base64.RawURLEncoding.EncodeToString(sign(text))
}

// TestTokens asks real Envoys.
func TestTokens(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			testTokens(t, version)
		})
	}
}

func testTokens(t *testing.T, version string) {
	t.Helper()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, r.Header.Get("X-Sub"), " ", r.Header.Get("Authorization") != "")
	}))
	t.Cleanup(app.Close)
	port := envoytest.FreePorts(t, 1)[0]
	file := &filterFile{path: filepath.Join(t.TempDir(), "jwt.json")}

	a, b := newIssuer(t, "a", "1", jose.RS256), newIssuer(t, "b", "1", jose.ES256)
	ruleA := func(keys string) authn.Rule {
		return authn.Rule{Spec: &securityv1.JWTRule{
			Issuer: "a", Audiences: []string{"us"}, OutputClaimToHeaders: []*securityv1.ClaimToHeader{{Header: "x-sub", Claim: "sub"}},
		}, Keys: keys}
	}
	ruleB := func(keys string) authn.Rule {
		return authn.Rule{Spec: &securityv1.JWTRule{
			Issuer: "b", ForwardOriginalToken: true, FromHeaders: []*securityv1.JWTHeader{{Name: "authorization", Prefix: "Bearer "}, {Name: "x-token"}},
			FromParams: []string{"token"}, FromCookies: []string{"session"},
		}, Keys: keys}
	}
	file.set(t, ruleA(keys(t, a)), ruleB(keys(t, b)))
	e := envoytest.Start(t, envoytest.Config{
		Bootstrap: fmt.Appendf(nil, ecdsBootstrap, envoytest.AdminJSON, port, file.path, app.URL[strings.LastIndexByte(app.URL, ':')+1:]), Version: version,
	})
	client := &http.Client{Timeout: envoytest.Patience}
	base := fmt.Sprintf("http://127.0.0.1:%d/", port)
	ask := func(edit func(*http.Request)) (int, string, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base, http.NoBody)
		if err != nil {
			return 0, "", err
		}
		edit(req)
		resp, err := client.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), err
	}
	bearer := func(token string) func(*http.Request) {
		return func(r *http.Request) {
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
		}
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		code, body, err := ask(bearer(a.token(t)))
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	want := func(name string, edit func(*http.Request), status int, text string) {
		t.Helper()
		code, body, err := ask(edit)
		if err != nil || code != status || !strings.Contains(body, text) {
			t.Errorf("%s: %d %q (%v), want %d with %q", name, code, body, err, status, text)
		}
	}
	const no = http.StatusUnauthorized
	ahead := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	want("no token", bearer(""), 200, " false")
	want("issuer a", bearer(a.token(t)), 200, "me false")
	want("issuer b", bearer(b.token(t)), 200, " true")
	want("wrong audience", bearer(a.token(t, map[string]any{"aud": "them"})), 403, "Audiences in Jwt are not allowed")
	want("one of two audiences", bearer(a.token(t, map[string]any{"aud": []string{"them", "us"}})), 200, "me")
	want("expired", bearer(a.token(t, map[string]any{"exp": ahead(-2 * time.Minute)})), no, "Jwt is expired")
	want("just expired", bearer(a.token(t, map[string]any{"exp": ahead(-20 * time.Second)})), 200, "me")
	want("not yet valid", bearer(a.token(t, map[string]any{"nbf": ahead(2 * time.Minute)})), no, "Jwt not yet valid")
	want("other issuer", bearer(issuer{"c", "1", a.key, a.alg}.token(t)), no, "Jwt issuer is not configured")
	want("key of the other", bearer(issuer{"b", "1", a.key, a.alg}.token(t)), no, "")
	want("key of nobody", bearer(newIssuer(t, "a", "1", jose.RS256).token(t)), no, "Jwt verification fails")
	want("unknown kid", bearer(issuer{"a", "2", a.key, a.alg}.token(t)), no, "")
	want("no text", bearer("x"), no, "Jwt is not in the form")
	want("good and bad", func(r *http.Request) {
		bearer(b.token(t))(r)
		r.Header.Set("X-Token", newIssuer(t, "b", "1", jose.ES256).token(t))
	}, no, "")
	want("header with the token alone", func(r *http.Request) { r.Header.Set("X-Token", b.token(t)) }, 200, "")
	want("parameter", func(r *http.Request) { r.URL.RawQuery = "token=" + b.token(t) }, 200, "")
	want("bad parameter", func(r *http.Request) { r.URL.RawQuery = "token=" + a.token(t) }, no, "")
	want("cookie", func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "session", Value: b.token(t)}) }, 200, "")
	want("bad cookie", func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "session", Value: "x"}) }, no, "")

	want("alg none", bearer(a.forged(t, map[string]any{"alg": "none", "kid": "1"}, func(string) []byte { return nil })), no, "")
	want("alg None", bearer(a.forged(t, map[string]any{"alg": "None"}, func(string) []byte { return nil })), no, "")
	want("no alg", bearer(a.forged(t, map[string]any{}, func(string) []byte { return nil })), no, "")
	hs := func(secret string) func(string) []byte {
		return func(text string) []byte {
			m := hmac.New(sha256.New, []byte(secret))
			m.Write([]byte(text))
			return m.Sum(nil)
		}
	}
	var public struct{ Keys []struct{ N string } }
	_ = json.Unmarshal([]byte(keys(t, a)), &public)
	n, _ := base64.RawURLEncoding.DecodeString(public.Keys[0].N)
	for _, secret := range []string{"", "1", public.Keys[0].N, string(n), keys(t, a)} {
		want("HS256 with the public key", bearer(a.forged(t, map[string]any{"alg": "HS256", "kid": "1"}, hs(secret))), no, "")
	}
	es := func(text string) []byte {
		digest := sha256.Sum256([]byte(text))
		r, s, err := ecdsa.Sign(rand.Reader, b.key.(*ecdsa.PrivateKey), digest[:])
		if err != nil {
			t.Fatal(err)
		}
		return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	}
	want("ES256 by hand", bearer(b.forged(t, map[string]any{"alg": "ES256", "kid": "1"}, es)), 200, "")
	for _, alg := range []string{"RS256", "PS256", "HS256", "EdDSA", "ES384", "none"} {
		want("an EC signature as "+alg, bearer(b.forged(t, map[string]any{"alg": alg, "kid": "1"}, es)), no, "")
	}
	rs := func(text string) []byte {
		digest := sha256.Sum256([]byte(text))
		s, err := rsa.SignPKCS1v15(rand.Reader, a.key.(*rsa.PrivateKey), crypto.SHA256, digest[:])
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	want("RS256 by hand", bearer(a.forged(t, map[string]any{"alg": "RS256", "kid": "1"}, rs)), 200, "")
	for _, alg := range []string{"ES256", "HS256", "PS256", "none"} {
		want("an RSA signature as "+alg, bearer(a.forged(t, map[string]any{"alg": alg, "kid": "1"}, rs)), no, "")
	}

	// Rotation: the new key comes, the old one goes.
	next := newIssuer(t, "a", "2", jose.RS256)
	change := func(edit func(*http.Request), status int, rules ...authn.Rule) {
		t.Helper()
		file.set(t, rules...)
		envoytest.Eventually(t, envoytest.Patience, func() error {
			code, body, err := ask(edit)
			if err == nil && code != status {
				err = fmt.Errorf("%d %s", code, body)
			}
			return err
		})
	}
	update := func(until issuer, status int, rules ...authn.Rule) {
		t.Helper()
		change(bearer(until.token(t)), status, rules...)
	}
	update(next, 200, ruleA(keys(t, a, next)), ruleB(keys(t, b)))
	want("the old key, still there", bearer(a.token(t)), 200, "me")
	update(a, no, ruleA(keys(t, next)), ruleB(keys(t, b)))
	want("the new key", bearer(next.token(t)), 200, "me")
	want("the other issuer", bearer(b.token(t)), 200, "")

	// Keys that are not there: only tokens of their issuer are refused.
	update(next, no, ruleA(""), ruleB(keys(t, b)))
	want("without keys", bearer(next.token(t)), no, "Jwks doesn't have any valid public key")
	want("without keys and token", bearer(""), 200, "")
	want("the other issuer beside", bearer(b.token(t)), 200, "")
	update(b, no, ruleA(""))
	want("one rule without keys", bearer(next.token(t)), no, "")
	want("one rule without token", bearer(""), 200, "")

	// Tokens that have to be there: another one does not replace them.
	required := func(r authn.Rule) authn.Rule {
		r.Spec.Presence = securityv1.JWTRule_REQUIRED
		return r
	}
	both := func(first, second string) func(*http.Request) {
		return func(r *http.Request) {
			bearer(first)(r)
			r.Header.Set("X-Token", second)
		}
	}
	change(bearer(""), no, required(ruleA(keys(t, a))))
	want("required, and missing", bearer(""), no, "Jwt is missing")
	want("required", bearer(a.token(t)), 200, "me")
	want("required, and expired", bearer(a.token(t, map[string]any{"exp": ahead(-2 * time.Minute)})), no, "Jwt is expired")
	apart := func(keys string) authn.Rule {
		r := ruleB(keys)
		r.Spec.FromHeaders, r.Spec.FromParams, r.Spec.FromCookies = []*securityv1.JWTHeader{{Name: "x-token"}}, nil, nil
		return r
	}
	change(bearer(a.token(t)), no, required(ruleA(keys(t, a))), required(apart(keys(t, b))))
	want("both required", both(a.token(t), b.token(t)), 200, "me")
	want("only the second of two", func(r *http.Request) { r.Header.Set("X-Token", b.token(t)) }, no, "Jwt is missing")
	update(a, 200, required(ruleA(keys(t, a))), apart(keys(t, b)))
	want("the other one is optional, and there", both(a.token(t), b.token(t)), 200, "me")
	want("the other one is optional, and bad", both(a.token(t), a.token(t)), no, "")
	want("only the optional one", func(r *http.Request) { r.Header.Set("X-Token", b.token(t)) }, no, "Jwt is missing")
	change(bearer(""), 200, ruleA(keys(t, a)))
	change(bearer(""), no, required(ruleA(keys(t, a))), ruleB(keys(t, b)))
	want("the optional one may be in the same place", bearer(a.token(t)), 200, "me")
	want("the optional one in the same place", bearer(b.token(t)), no, "")

	if n := e.Stat(t, "extension_config_discovery.http_filter.jwt.config_reload"); n != file.version {
		t.Errorf("%d configurations were taken, want %d", n, file.version)
	}
	if n := e.Stat(t, "listener_manager.listener_in_place_updated") + e.Stat(t, "listener_manager.listener_modified"); n != 0 {
		t.Errorf("%d updates of listeners", n)
	}
	e.NoRejections(t)
}
