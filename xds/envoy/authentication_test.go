package envoy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	"google.golang.org/protobuf/encoding/protojson"
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/issuertest"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// tokenFilter is the extension for tokens, as its configuration, and what is said of its rules.
func tokenFilter(t *testing.T, a *view.Authentication) (*corev3.TypedExtensionConfig, *jwtv3.JwtAuthentication, []envoy.Diagnostic) {
	t.Helper()
	resources, diagnostics := envoy.Build(&view.Extension{Slot: view.JWTSlot, Authentication: a})
	m, err := envoy.Decode(resources[0])
	if err != nil {
		t.Fatal(err)
	}
	e, ok := m.(*corev3.TypedExtensionConfig)
	if !ok || e.GetName() != string(view.JWTSlot) || len(resources) != 1 {
		t.Fatalf("the extension is %v", m)
	}
	filter := &jwtv3.JwtAuthentication{}
	if err := e.GetTypedConfig().UnmarshalTo(filter); err != nil {
		t.Fatal(err)
	}
	return e, filter, diagnostics
}

func TestTokenFilterHasNoEffectWithoutRules(t *testing.T) {
	t.Parallel()
	_, filter, diagnostics := tokenFilter(t, nil)
	if len(filter.GetProviders())+len(filter.GetRules())+len(diagnostics) > 0 {
		t.Errorf("%v %v", filter, diagnostics)
	}
}

func TestTokenFilter(t *testing.T) {
	t.Parallel()
	_, filter, diagnostics := tokenFilter(t, &view.Authentication{Rules: []view.TokenRule{
		{Spec: &security.JWTRule{Issuer: "a"}, Keys: "one"}, {Spec: &security.JWTRule{Issuer: "b"}, CheckOnly: true},
	}})
	p := filter.GetProviders()
	if len(diagnostics) > 0 || len(p) != 2 || p["origins-0"].GetLocalJwks().GetInlineString() != "one" || p["origins-0"].GetPayloadInMetadata() != "payload" ||
		p["origins-1"].GetIssuer() != "b" || p["origins-1"].GetPayloadInMetadata() != "" {
		t.Errorf("%v %v", filter, diagnostics)
	}
}

// TestTokenRulesThatNoEnvoyTakes: they are told, and real Envoys refuse every request.
func TestTokenRulesThatNoEnvoyTakes(t *testing.T) {
	t.Parallel()
	s := snapshotOf(t, `
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: users, namespace: shop}
spec: {jwtRules: [{issuer: "https://a.example"}, {issuer: "https://b.example"}]}
`, "")
	of := func(edit func(*view.Authentication)) *view.Authentication {
		for part := range view.NewIndex(s).Build(proxyFile{Namespace: "shop", ServiceAccount: "web", IP: "10.0.0.1", Interception: "REDIRECT"}.proxy()).Parts() {
			if e, ok := part.(*view.Extension); ok && e.Slot == view.JWTSlot {
				edit(e.Authentication)
				return e.Authentication
			}
		}
		t.Fatal("there is no extension for tokens")
		return nil
	}
	var refusing *corev3.TypedExtensionConfig
	for name, edit := range map[string]func(*view.Authentication){
		"a line break in the name of a header": func(a *view.Authentication) {
			a.Rules[1].Spec = &security.JWTRule{Issuer: "b", FromHeaders: []*security.JWTHeader{{Name: "x\n"}}}
		},
		"too many keys": func(a *view.Authentication) { a.Rules[1].Keys = strings.Repeat("x", 1<<20+1) },
	} {
		e, filter, diagnostics := tokenFilter(t, of(edit))
		if len(diagnostics) != 1 || diagnostics[0].Key.Name != "users" || diagnostics[0].Origin == nil || !strings.Contains(diagnostics[0].Message, "every request is refused") {
			t.Errorf("%s: %v", name, diagnostics)
		}
		if err := filter.ValidateAll(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		refusing = e
	}
	config, err := protojson.Marshal(refusing.GetTypedConfig())
	if err != nil {
		t.Fatal(err)
	}
	const static = `{"admin": %s, "node": {"id": "x", "cluster": "x"}, "static_resources": {"listeners": [{"name": "in",
		"address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}}, "filter_chains": [{"filters": [{
		"name": "envoy.filters.network.http_connection_manager", "typed_config": {
		"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "in",
		"route_config": {"virtual_hosts": [{"name": "x", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "direct_response": {"status": 200}}]}]},
		"http_filters": [{"name": "envoy.filters.http.jwt_authn", "typed_config": %s},
		{"name": "envoy.filters.http.router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}]}}`
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			port := envoytest.FreePorts(t, 1)[0]
			envoytest.Start(t, envoytest.Config{Bootstrap: fmt.Appendf(nil, static, envoytest.AdminJSON, port, config), Version: version})
			client := &http.Client{Timeout: envoytest.Patience}
			for name, header := range map[string]string{"nothing": "", "a token": "Bearer " + issuertest.New(t, "nobody", "1").Token(nil), "no token": "Bearer x"} {
				for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodOptions} {
					envoytest.Eventually(t, envoytest.Patience, func() error {
						req, err := http.NewRequestWithContext(t.Context(), method, fmt.Sprintf("http://127.0.0.1:%d/", port), http.NoBody)
						if err != nil {
							return err
						}
						req.Header.Set("Authorization", header)
						req.Header.Set("Origin", "http://a.example") // of a preflight request
						req.Header.Set("Access-Control-Request-Method", "GET")
						res, err := client.Do(req)
						if err != nil {
							return err
						}
						defer res.Body.Close()
						if body, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusUnauthorized {
							t.Errorf("%s with %s: %d %s", method, name, res.StatusCode, body)
						}
						return nil
					})
				}
			}
		})
	}
}
