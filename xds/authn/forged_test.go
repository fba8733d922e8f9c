package authn_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/protobuf/encoding/protojson"
	securityv1 "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/authn"
)

// outputListener has a filter for tokens, and sends requests to a cluster in HTTP/1.1 or HTTP/2.
const outputListener = `{"name": %q, "address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}}, "filter_chains": [{"filters": [{
   "name": "envoy.filters.network.http_connection_manager", "typed_config": {
    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "in",
    "http_protocol_options": {"enable_trailers": true},
    "route_config": {"virtual_hosts": [{"name": "x", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "app"}}]}]},
    "http_filters": [
     {"name": "jwt", "typed_config": %s},
     {"name": "envoy.filters.http.router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}`

const outputBootstrap = `{
 "admin": %s,
 "node": {"id": "x", "cluster": "x"},
 "static_resources": {
  "listeners": [%s],
  "clusters": [{"name": "app", "type": "STATIC", "connect_timeout": "5s",
   "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "use_downstream_protocol_config": {
     "http_protocol_options": {"enable_trailers": true}, "http2_protocol_options": {}}}},
   "load_assignment": {"cluster_name": "app", "endpoints": [{"lb_endpoints": [{"endpoint":
   {"address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}}}}]}]}}]}}`

// received is what the application got.
type received struct {
	Sub, Payload, Group []string
	HTTP                int
}

func (r received) String() string {
	return fmt.Sprintf("sub=%q payload=%q group=%q HTTP/%d", r.Sub, r.Payload, r.Group, r.HTTP)
}

// TestOutputHeadersAreOfTheToken: what the application finds in the headers that rules write
// comes from a token of such a rule, whatever a client sends.
func TestOutputHeadersAreOfTheToken(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			testOutputHeaders(t, version)
		})
	}
}

func testOutputHeaders(t *testing.T, version string) {
	t.Helper()
	app := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = json.NewEncoder(w).Encode(received{r.Header.Values("X-Sub"), r.Header.Values("X-Payload"), r.Header.Values("X-Group"), r.ProtoMajor})
	}))
	app.Config.Protocols = bothProtocols()
	app.Start()
	t.Cleanup(app.Close)

	// Envoy asks the rules in the order of their issuers.
	a, b := newIssuer(t, "a", "1", jose.ES256), newIssuer(t, "b", "1", jose.ES256)
	tokens := map[string]string{
		"no token": "", "of a": a.token(t), "of b": b.token(t),
		"bad": newIssuer(t, "a", "1", jose.ES256).token(t),
	}
	payloadOf := func(token string) string { return strings.Split(tokens[token], ".")[1] }
	sub := []*securityv1.ClaimToHeader{{Header: "X-Sub", Claim: "sub"}}
	group := []*securityv1.ClaimToHeader{{Header: "x-group", Claim: "iss"}}
	plainA := authn.Rule{Spec: &securityv1.JWTRule{Issuer: "a"}, Keys: keys(t, a)}
	outA := authn.Rule{Spec: &securityv1.JWTRule{Issuer: "a", OutputClaimToHeaders: group}, Keys: keys(t, a)}
	outB := authn.Rule{Spec: &securityv1.JWTRule{Issuer: "b", OutputClaimToHeaders: sub, OutputPayloadToHeader: "X-Payload"}, Keys: keys(t, b)}
	checkB := outB
	checkB.CheckOnly = true
	noKeysB := outB
	noKeysB.Keys = ""
	payloadB := authn.Rule{Spec: &securityv1.JWTRule{Issuer: "b", OutputPayloadToHeader: "x-payload"}, Keys: keys(t, b)}

	ofB := received{Sub: []string{"me"}, Payload: []string{payloadOf("of b")}}
	scenes := map[string]struct {
		rules []authn.Rule
		takes []string // tokens
		want  map[string]received
		also  []string // headers that no rule writes, and that pass
	}{
		"one rule":                       {[]authn.Rule{outB}, []string{"of b"}, map[string]received{"of b": ofB}, []string{"X-Group"}},
		"another rule before":            {[]authn.Rule{plainA, outB}, []string{"of a", "of b"}, map[string]received{"of b": ofB}, []string{"X-Group"}},
		"both write":                     {[]authn.Rule{outA, outB}, []string{"of a", "of b"}, map[string]received{"of a": {Group: []string{"a"}}, "of b": ofB}, nil},
		"payload alone":                  {[]authn.Rule{plainA, payloadB}, []string{"of a", "of b"}, map[string]received{"of b": {Payload: ofB.Payload}}, []string{"X-Group", "X-Sub"}},
		"check only":                     {[]authn.Rule{checkB}, []string{"of b"}, nil, []string{"X-Group"}},
		"check only, behind another":     {[]authn.Rule{plainA, checkB}, []string{"of a", "of b"}, nil, []string{"X-Group"}},
		"check only, beside one that is": {[]authn.Rule{checkB, outA}, []string{"of a", "of b"}, map[string]received{"of a": {Group: []string{"a"}}}, nil},
		"without keys":                   {[]authn.Rule{plainA, noKeysB}, []string{"of a"}, nil, []string{"X-Group"}},
	}
	ports := map[string]int{}
	var listeners []string
	for name, s := range scenes {
		config, err := protojson.Marshal(authn.Filter(s.rules, false))
		if err != nil {
			t.Fatal(err)
		}
		ports[name] = envoytest.FreePorts(t, 1)[0]
		listeners = append(listeners, fmt.Sprintf(outputListener, name, ports[name],
			`{"@type":"type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",`+string(config[1:])))
	}
	envoytest.Start(t, envoytest.Config{
		Bootstrap: fmt.Appendf(nil, outputBootstrap, envoytest.AdminJSON, strings.Join(listeners, ","), app.Listener.Addr().(*net.TCPAddr).Port), Version: version,
	})

	// The header of the provider that accepts nothing is no way around the rules.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", ports["check only"]), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range tokens {
		req.Header.Set(authn.Nowhere, text)
		if status, got, err := send(clientOf(1), req); err != nil || status != http.StatusUnauthorized {
			t.Errorf("%s: %q: %d, %v, %v", authn.Nowhere, text, status, got, err)
		}
	}

	testRawHeaders(t, ports["check only"])

	for name, s := range scenes {
		for _, protocol := range []int{1, 2} {
			client := clientOf(protocol)
			for kind, edit := range kindsOfRequest() {
				for token, text := range tokens {
					at := fmt.Sprintf("%s, HTTP/%d, %s, %s", name, protocol, kind, token)
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", ports[name]), http.NoBody)
					if err != nil {
						t.Fatal(err)
					}
					for _, header := range []string{"X-Sub", "X-Payload", "X-Group"} {
						for _, h := range []string{header, strings.ToLower(header), strings.ToUpper(header)} {
							req.Header[h] = []string{"forged", "", "again"}
						}
					}
					if text != "" {
						req.Header.Set("Authorization", "Bearer "+text)
					}
					edit(req)
					status, got, err := send(client, req)
					if err != nil {
						t.Errorf("%s: %v", at, err)
						continue
					}
					bypassed := kind == "preflight" // nobody's tokens are looked at
					if token != "no token" && !slices.Contains(s.takes, token) && !bypassed {
						if status != http.StatusUnauthorized {
							t.Errorf("%s: %d, %v", at, status, got)
						}
						continue
					}
					want := s.want[token]
					if bypassed {
						want = received{}
					}
					want.HTTP = protocol
					for _, h := range s.also {
						values := map[string]*[]string{"X-Sub": &got.Sub, "X-Payload": &got.Payload, "X-Group": &got.Group}[h]
						if !slices.Contains(*values, "forged") {
							t.Errorf("%s: %s does not pass", at, h)
						}
						*values = nil
					}
					if status != http.StatusOK || got.String() != want.String() {
						t.Errorf("%s: %d, %v, want %v", at, status, got, want)
					}
				}
			}
		}
	}
}

func bothProtocols() *http.Protocols {
	p := &http.Protocols{}
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

func clientOf(protocol int) *http.Client {
	p := &http.Protocols{}
	p.SetHTTP1(protocol == 1)
	p.SetUnencryptedHTTP2(protocol == 2)
	return &http.Client{Timeout: envoytest.Patience, Transport: &http.Transport{Protocols: p, DisableKeepAlives: protocol == 1}}
}

// kindsOfRequest are requests that Envoy or the application may treat in ways of their own.
func kindsOfRequest() map[string]func(*http.Request) {
	body := func(r *http.Request) {
		r.Method = http.MethodPost
		// Envoy may end a connection whose answer came before the end of the request.
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("x")), nil }
		r.Body, _ = r.GetBody()
	}
	return map[string]func(*http.Request){
		"GET":     func(*http.Request) {},
		"body":    body,
		"OPTIONS": func(r *http.Request) { r.Method = http.MethodOptions },
		"gRPC": func(r *http.Request) {
			body(r)
			r.Header.Set("Content-Type", "application/grpc")
			r.Header.Set("Te", "trailers")
		},
		"trailers": func(r *http.Request) {
			body(r)
			r.ContentLength = -1
			r.Trailer = http.Header{"X-Sub": {"forged"}, "X-Payload": {"forged"}, "X-Group": {"trailer"}}
		},
		"preflight": func(r *http.Request) {
			r.Method = http.MethodOptions
			r.Header.Set("Origin", "https://a.example")
			r.Header.Set("Access-Control-Request-Method", "GET")
		},
		"no preflight, without an origin": func(r *http.Request) {
			r.Method = http.MethodOptions
			r.Header.Set("Origin", "")
			r.Header.Set("Access-Control-Request-Method", "GET")
		},
	}
}

// send returns the answer's status, and what the application got if it is 200.
func send(client *http.Client, req *http.Request) (int, received, error) {
	res, err := client.Do(req)
	if err != nil {
		return 0, received{}, err
	}
	defer res.Body.Close()
	var got received
	switch {
	case res.Header.Get("Grpc-Status") == "16": // UNAUTHENTICATED
		return http.StatusUnauthorized, got, nil
	case res.StatusCode == http.StatusOK:
		err = json.NewDecoder(res.Body).Decode(&got)
	}
	return res.StatusCode, got, err
}

// testRawHeaders writes headers that no client would: Envoy refuses them, or removes them too.
func testRawHeaders(t *testing.T, port int) {
	t.Helper()
	for _, lines := range []string{
		"X-Sub: forged", "X-Sub : forged", "X-Sub\t: forged", " X-Sub: forged", "A: b\r\n X-Sub: forged", "X-Sub:\r\n forged", "X-Sub\x00: forged", "\x00X-Sub: forged", "X-Sub\r: forged",
		"X-Sub:forged\nX-Sub: forged", "A: b\nX-Sub: forged", "A: b\rX-Sub: forged", "X-Sub: \x00forged", "Connection: x-sub\r\nX-Sub: forged",
		"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Sub: forged", "Upgrade: websocket\r\nConnection: Upgrade\r\nX-Sub: forged",
	} {
		connection := "Connection: close\r\n"
		if strings.Contains(lines, "Connection:") {
			connection = ""
		}
		status, got, err := sendRaw(t, port, "GET / HTTP/1.1\r\nHost: x\r\n"+connection+lines+"\r\n\r\n")
		if err != nil || len(got.Sub) > 0 {
			t.Errorf("%q: %d, %v, %v", lines, status, got, err)
		}
	}
}

func sendRaw(t *testing.T, port int, text string) (int, received, error) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return 0, received{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(envoytest.Patience)); err != nil {
		return 0, received{}, err
	}
	if _, err := io.WriteString(conn, text); err != nil {
		return 0, received{}, err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, received{}, err
	}
	defer res.Body.Close()
	var got received
	if res.StatusCode == http.StatusOK {
		err = json.NewDecoder(res.Body).Decode(&got)
	}
	return res.StatusCode, got, err
}
