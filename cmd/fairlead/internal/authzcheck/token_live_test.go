package authzcheck

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	"google.golang.org/protobuf/encoding/protojson"
	securityv1 "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/issuertest"
	"github.com/fairlead/fairlead/pki/jwks"
	"github.com/fairlead/fairlead/xds/authn"
	"github.com/fairlead/fairlead/xds/authz/judge"
)

const tokenListener = `{"name": %q, "address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}}, "filter_chains": [{"filters": [{
   "name": "envoy.filters.network.http_connection_manager", "typed_config": {
    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "in",
    "route_config": {"virtual_hosts": [{"name": "x", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "app"}}]}]},
    "http_filters": [
     {"name": "jwt", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",%s},
     {"name": "envoy.filters.http.router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}`

const tokenBootstrap = `{"admin": %s, "node": {"id": "x", "cluster": "x"}, "static_resources": {"listeners": [%s], "clusters": [{
  "name": "app", "type": "STATIC", "connect_timeout": "5s", "load_assignment": {"cluster_name": "app", "endpoints": [{"lb_endpoints": [{"endpoint":
   {"address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}}}}]}]}}]}}`

// comparedHeaders are the headers that are compared. Whoever asks cannot know the payload of a token.
func comparedHeaders(h http.Header) http.Header {
	out := http.Header{}
	for _, name := range []string{"Authorization", "X-Token", "X-Sub", "X-Group"} {
		if v := h.Values(name); len(v) > 0 {
			out[name] = v
		}
	}
	return out
}

// TestRealEnvoysJudgeTokensAlike: what is said of the tokens in a request is what Envoys do.
func TestRealEnvoysJudgeTokensAlike(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			testTokensAlike(t, version)
		})
	}
}

func testTokensAlike(t *testing.T, version string) {
	t.Helper()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(comparedHeaders(r.Header))
	}))
	t.Cleanup(app.Close)
	a, b := issuertest.New(t, "a", "1"), issuertest.New(t, "b", "1")
	keysOf := func(i *issuertest.Issuer) string {
		set, _, err := jwks.Parse([]byte(issuertest.KeySet(i)))
		if err != nil {
			t.Fatal(err)
		}
		return set.JSON
	}
	ruleA := authn.Rule{Spec: &securityv1.JWTRule{Issuer: "a", Audiences: []string{"us"}}, Keys: keysOf(a)}
	writesA := authn.Rule{Spec: &securityv1.JWTRule{Issuer: "a", OutputClaimToHeaders: []*securityv1.ClaimToHeader{{Header: "X-Sub", Claim: "sub"}, {Header: "x-group", Claim: "deep.group"}}}, Keys: keysOf(a)}
	checksA := writesA
	checksA.CheckOnly = true
	placesB := authn.Rule{Spec: &securityv1.JWTRule{
		Issuer: "b", FromHeaders: []*securityv1.JWTHeader{{Name: "x-token", Prefix: "T "}}, FromParams: []string{"t"}, FromCookies: []string{"c"}, ForwardOriginalToken: true,
	}, Keys: keysOf(b)}
	noKeysB := authn.Rule{Spec: &securityv1.JWTRule{Issuer: "b"}}
	filters := map[string]*jwtv3.JwtAuthentication{}
	ports := map[string]int{}
	var listeners []string
	for name, rules := range map[string][]authn.Rule{
		"one": {ruleA}, "two": {ruleA, placesB}, "writes": {writesA}, "writes beside": {writesA, placesB}, "checks": {checksA, placesB}, "no keys": {ruleA, noKeysB}, "twice": {writesA, ruleA},
	} {
		filters[name], ports[name] = authn.Filter(rules, false), envoytest.FreePorts(t, 1)[0]
		config, err := protojson.Marshal(filters[name])
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, fmt.Sprintf(tokenListener, name, ports[name], config[1:]))
	}
	envoytest.Start(t, envoytest.Config{
		Bootstrap: fmt.Appendf(nil, tokenBootstrap, envoytest.AdminJSON, strings.Join(listeners, ","), app.Listener.Addr().(*net.TCPAddr).Port), Version: version,
	})

	goodA, goodB, them := a.Token(map[string]any{"deep": map[string]any{"group": "g"}}), b.Token(nil), a.Token(map[string]any{"aud": "them"})
	client := &http.Client{Timeout: envoytest.Patience}
	asked, passed := 0, 0
	for name, filter := range filters {
		for _, auth := range []string{"", "Bearer " + goodA, "Bearer " + goodB, "Bearer " + them, "Bearer x", goodA} {
			for _, own := range []string{"", "T " + goodB, "T " + goodA, "x", "T x"} {
				for _, query := range []string{"", "?t=" + goodB, "?t=x", "?access_token=" + goodA, "?access_token=" + goodB} {
					for _, kind := range []string{http.MethodGet, http.MethodOptions, "forged", "cookie"} {
						req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/%s", ports[name], query), http.NoBody)
						if err != nil {
							t.Fatal(err)
						}
						for h, v := range map[string]string{"Authorization": auth, "X-Token": own} {
							if v != "" {
								req.Header.Set(h, v)
							}
						}
						switch kind {
						case http.MethodOptions: // a preflight request
							req.Method, req.Header["Origin"], req.Header["Access-Control-Request-Method"] = kind, []string{"http://a"}, []string{"GET"}
						case "forged":
							req.Header["X-Sub"], req.Header["X-Group"] = []string{"forged"}, []string{"forged", "again"}
						case "cookie":
							req.Header.Set("Cookie", "c="+goodB)
						}
						asked++
						if alike(t, name, filter, client, req) {
							passed++
						}
					}
				}
			}
		}
	}
	if passed < asked/10 || passed > asked*9/10 {
		t.Errorf("%d of %d requests passed: that tells nothing", passed, asked)
	}
}

// alike asks an Envoy and the filter it has, and returns whether the request passes.
func alike(t *testing.T, name string, filter *jwtv3.JwtAuthentication, client *http.Client, req *http.Request) bool {
	t.Helper()
	r := &judge.Request{Method: req.Method, Path: req.URL.RequestURI(), Headers: req.Header.Clone()}
	_, _, err := checkTokens(filter, Question{}, r)
	refused, ok := errors.AsType[*tokenError](err)
	if err != nil && !ok {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got := http.Header{}
	if res.StatusCode == http.StatusOK {
		if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
			t.Fatal(err)
		}
	}
	query, _ := url.QueryUnescape(req.URL.RawQuery)
	if (res.StatusCode == http.StatusOK) != (refused == nil) {
		t.Errorf("%s: %s %v %s: Envoy answers %d, we say %v", name, req.Method, req.Header, query, res.StatusCode, refused)
	}
	want := comparedHeaders(http.Header(r.Headers))
	if refused == nil && !slices.Equal(lines(got), lines(want)) {
		t.Errorf("%s: %s %v %s: the application gets %v, we say %v", name, req.Method, req.Header, query, got, want)
	}
	return refused == nil
}

func lines(h http.Header) (out []string) {
	for name, values := range h {
		out = append(out, fmt.Sprintf("%s: %q", name, values))
	}
	slices.Sort(out)
	return out
}
