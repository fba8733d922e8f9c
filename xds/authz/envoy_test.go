package authz_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/authz"
	"github.com/fairlead/fairlead/xds/authz/judge"
)

// metadataFilter is the name under which Envoy keeps the metadata of the tests: the header
// x-meta as "k", and what a connection says in the PROXY protocol as "tlv".
const metadataFilter = "envoy.filters.test"

// request is a request, or a connection, of a test.
type request struct {
	// TCP says that it is a connection to a port that is not HTTP.
	TCP     bool              `yaml:"tcp"`
	Method  string            `yaml:"method"`
	Path    string            `yaml:"path"`
	Host    string            `yaml:"host"`
	Headers map[string]string `yaml:"headers"`
	// Again is headers once more, so that there are two of a name.
	Again map[string]string `yaml:"again"`
	// Claims are those of a token; nil means that there is none.
	Claims map[string]any `yaml:"claims"`
	// Peer is the SPIFFE ID of the client without its scheme. "none" is TLS without a
	// certificate; empty means no TLS.
	Peer string `yaml:"peer"`
	SNI  string `yaml:"sni"`
	// Source is a loopback address that the connection comes from; Remote and Destination
	// are those of the PROXY protocol.
	Source      string `yaml:"source"`
	Remote      string `yaml:"remote"`
	Destination string `yaml:"destination"`
	// Meta is metadata, by a header or by the PROXY protocol.
	Meta string `yaml:"meta"`
}

// filled is r with what it leaves out.
func (r request) filled() request {
	set := func(v *string, def string) {
		if *v == "" {
			*v = def
		}
	}
	if !r.TCP {
		set(&r.Method, "GET")
		set(&r.Path, "/")
		set(&r.Host, "httpbin.foo")
	}
	set(&r.Source, "127.0.0.1")
	set(&r.Destination, "10.99.0.1:8080")
	if netip.MustParseAddrPort(r.Destination).Addr().Is6() {
		set(&r.Remote, "fd00::1")
	}
	set(&r.Remote, "10.1.1.1")
	return r
}

// subject is the request as the judge is told it.
func (r request) subject(tb testing.TB, joins bool) judge.Request {
	tb.Helper()
	r = r.filled()
	out := judge.Request{
		JoinsHeaders: joins,
		Method:       r.Method, Path: r.Path, Authority: r.Host, Headers: map[string][]string{},
		Source: netip.MustParseAddr(r.Source), Remote: netip.MustParseAddr(r.Remote), Destination: netip.MustParseAddrPort(r.Destination),
		Metadata: map[string]*structpb.Struct{},
	}
	for _, headers := range []map[string]string{r.Headers, r.Again} {
		for k, v := range headers {
			out.Headers[strings.ToLower(k)] = append(out.Headers[strings.ToLower(k)], v)
		}
	}
	if r.Peer != "" {
		out.SNI, out.Peer = r.SNI, &judge.Peer{}
	}
	if r.Peer != "" && r.Peer != "none" {
		out.Peer.URIs = []string{"spiffe://" + r.Peer}
	}
	if r.Meta != "" {
		key := "k"
		if r.TCP {
			key = "tlv"
		} else {
			out.Headers["x-meta"] = []string{r.Meta}
		}
		out.Metadata[metadataFilter] = &structpb.Struct{Fields: map[string]*structpb.Value{key: structpb.NewStringValue(r.Meta)}}
	}
	if r.Claims != nil {
		body, err := json.Marshal(r.Claims)
		fatalIf(tb, err, "encoding claims")
		payload := &structpb.Struct{}
		fatalIf(tb, protojson.Unmarshal(body, payload), "decoding claims")
		out.Metadata[authz.JWTFilter] = &structpb.Struct{Fields: map[string]*structpb.Value{authz.JWTPayload: structpb.NewStructValue(payload)}}
	}
	return out
}

// answer is what became of a request.
type answer struct {
	Allowed bool
	// Policy is the policy that denied, for requests.
	Policy string
	// Shadows are the policies that matched in shadow rules, by action.
	Shadows map[string]string
}

// lab is a real Envoy that serves sets of rules, each at listeners of its own, and those who
// call it.
type lab struct {
	key       *ecdsa.PrivateKey // signs certificates and tokens
	root      *x509.Certificate
	mu        sync.Mutex // guards peers
	peers     map[string]tls.Certificate
	addresses map[string][]string // by the name of a listener
	envoy     *envoytest.Envoy
}

// ruleset is the rules of one set of policies.
type ruleset struct {
	HTTP, TCP authz.Rules
	// joins says that they are for an Envoy that joins headers.
	joins bool
}

func rulesOf(policies []authz.Policy, o authz.Options) ruleset {
	return ruleset{HTTP: authz.HTTP(policies, o), TCP: authz.TCP(policies, o), joins: o.JoinsHeaders}
}

// joinsHeaders tells whether an Envoy compares several headers of a name as one.
func joinsHeaders(version string) bool { return version == "1.36.2" || version == "1.37.0" }

func newLab(t *testing.T, version string, sets map[string]ruleset) *lab {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatalIf(t, err, "making a key")
	l := &lab{key: key, peers: map[string]tls.Certificate{}, addresses: map[string][]string{}}
	l.root = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, l.root, l.root, &key.PublicKey, key)
	fatalIf(t, err, "signing a root")
	l.root, err = x509.ParseCertificate(der)
	fatalIf(t, err, "reading a root")
	l.envoy = envoytest.Start(t, envoytest.Config{Bootstrap: l.bootstrap(t, sets), Version: version})
	var listeners struct {
		Statuses []struct {
			Name       string    `json:"name"`
			Local      address   `json:"local_address"`
			Additional []address `json:"additional_local_addresses"`
		} `json:"listener_statuses"`
	}
	fatalIf(t, json.Unmarshal([]byte(l.envoy.Admin(t, "/listeners?format=json")), &listeners), "reading listeners")
	for _, s := range listeners.Statuses {
		for _, a := range append([]address{s.Local}, s.Additional...) {
			l.addresses[s.Name] = append(l.addresses[s.Name], netip.AddrPortFrom(netip.MustParseAddr(a.Socket.Address), a.Socket.Port).String())
		}
	}
	return l
}

type address struct {
	Socket struct {
		Address string `json:"address"`
		Port    uint16 `json:"port_value"`
	} `json:"socket_address"`
}

// object is a part of a bootstrap.
type object = map[string]any

const typePrefix = "type.googleapis.com/envoy.extensions."

func typed(name, typeName string, o object) object {
	o["@type"] = typePrefix + typeName
	return object{"name": name, "typed_config": o}
}

// node is a message as a part of a bootstrap.
func node(tb testing.TB, name string, m proto.Message) object {
	tb.Helper()
	a, err := anypb.New(m)
	fatalIf(tb, err, "packing")
	body, err := protojson.Marshal(a)
	fatalIf(tb, err, "encoding")
	var o object
	fatalIf(tb, json.Unmarshal(body, &o), "decoding")
	return object{"name": name, "typed_config": o}
}

func (l *lab) bootstrap(t *testing.T, sets map[string]ruleset) []byte {
	t.Helper()
	var listeners []object
	for name, s := range sets {
		listeners = append(listeners, l.listener(t, "http-"+name, l.httpFilters(t, s.HTTP)), l.listener(t, "tcp-"+name, l.networkFilters(t, s.TCP)))
	}
	body, err := json.Marshal(object{
		"node": object{"id": "test", "cluster": "test"}, "admin": json.RawMessage(envoytest.AdminJSON),
		"layered_runtime":  object{"layers": []object{{"name": "static", "static_layer": object{"re2.max_program_size.error_level": 32768}}}},
		"static_resources": object{"listeners": listeners},
	})
	fatalIf(t, err, "encoding a bootstrap")
	return body
}

func (l *lab) listener(t *testing.T, name string, filters []object) object {
	t.Helper()
	at := func(host string) object { return object{"socket_address": object{"address": host, "port_value": 0}} }
	cert, key := l.identity(t, "cluster.local/ns/foo/sa/httpbin")
	root := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: l.root.Raw}))
	out := object{
		"name": name, "address": at("127.0.0.1"),
		"listener_filters": []object{
			typed("envoy.filters.listener.proxy_protocol", "filters.listener.proxy_protocol.v3.ProxyProtocol", object{"rules": []object{
				{"tlv_type": tlvType, "on_tlv_present": object{"metadata_namespace": metadataFilter, "key": "tlv"}},
			}}),
			typed("envoy.filters.listener.tls_inspector", "filters.listener.tls_inspector.v3.TlsInspector", object{}),
		},
		"filter_chains": []object{
			{
				"filter_chain_match": object{"transport_protocol": "tls"}, "filters": filters,
				"transport_socket": typed("envoy.transport_sockets.tls", "transport_sockets.tls.v3.DownstreamTlsContext", object{
					"require_client_certificate": false, "common_tls_context": object{
						"tls_certificates":   []object{{"certificate_chain": object{"inline_string": cert}, "private_key": object{"inline_string": key}}},
						"validation_context": object{"trusted_ca": object{"inline_string": root}},
					},
				}),
			},
			{"filter_chain_match": object{"transport_protocol": "raw_buffer"}, "filters": filters},
		},
	}
	if hasIPv6() {
		out["additional_addresses"] = []object{{"address": at("::1")}}
	}
	return out
}

// hasIPv6 tells whether the machine has the loopback address of IPv6.
func hasIPv6() bool {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "[::1]:0")
	if err == nil {
		l.Close()
	}
	return err == nil
}

// httpFilters tell in the answer what they found: the code details of a refusal in its body,
// and the metadata of shadow rules in headers.
func (l *lab) httpFilters(t *testing.T, r authz.Rules) []object {
	t.Helper()
	filters := []object{
		typed("meta", "filters.http.header_to_metadata.v3.Config", object{"request_rules": []object{
			{"header": "x-meta", "on_header_present": object{"metadata_namespace": metadataFilter, "key": "k", "type": "STRING"}},
		}}),
		typed(authz.JWTFilter, "filters.http.jwt_authn.v3.JwtAuthentication", object{
			"providers": object{"any": object{"local_jwks": object{"inline_string": l.keys(t)}, "payload_in_metadata": authz.JWTPayload}},
			"rules": []object{{"match": object{"prefix": "/"}, "requires": object{"requires_any": object{
				"requirements": []object{{"provider_name": "any"}, {"allow_missing": object{}}},
			}}}},
		}),
	}
	for _, s := range r.InOrder() {
		filters = append(filters, node(t, "envoy.filters.http.rbac", s.HTTPFilter()))
	}
	filters = append(filters, typed("envoy.filters.http.router", "filters.http.router.v3.Router", object{}))
	show := func(name, key string) object {
		return object{"header": object{"key": name, "value": "%DYNAMIC_METADATA(envoy.filters.http.rbac:" + key + ")%"}}
	}
	return []object{typed("hcm", "filters.network.http_connection_manager.v3.HttpConnectionManager", object{
		"stat_prefix": "test", "normalize_path": true, "http_filters": filters,
		"local_reply_config": object{"body_format": object{"text_format_source": object{"inline_string": "%RESPONSE_CODE_DETAILS%"}}},
		"route_config": object{
			"virtual_hosts": []object{{"name": "all", "domains": []string{"*"}, "routes": []object{
				{"match": object{"prefix": "/"}, "direct_response": object{"status": http.StatusOK}},
			}}},
			"response_headers_to_add": []object{
				show("x-allow", "istio_dry_run_allow_shadow_effective_policy_id"), show("x-deny", "istio_dry_run_deny_shadow_effective_policy_id"),
			},
		},
	})}
}

func (l *lab) networkFilters(t *testing.T, r authz.Rules) []object {
	t.Helper()
	var filters []object
	for _, s := range r.InOrder() {
		filters = append(filters, node(t, "envoy.filters.network.rbac", s.NetworkFilter()))
	}
	return append(filters, typed("envoy.filters.network.echo", "filters.network.echo.v3.Echo", object{}))
}

// identity is a certificate for a SPIFFE ID, with its key, as PEM.
func (l *lab) identity(tb testing.TB, id string) (cert, key string) {
	tb.Helper()
	u, err := url.Parse("spiffe://" + id)
	fatalIf(tb, err, "reading an identity")
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), URIs: []*url.URL{u}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, l.root, &l.key.PublicKey, l.key)
	fatalIf(tb, err, "signing "+id)
	keyDER, err := x509.MarshalPKCS8PrivateKey(l.key)
	fatalIf(tb, err, "writing a key")
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

func (l *lab) peer(tb testing.TB, id string) tls.Certificate {
	tb.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if c, ok := l.peers[id]; ok {
		return c
	}
	cert, key := l.identity(tb, id)
	c, err := tls.X509KeyPair([]byte(cert), []byte(key))
	fatalIf(tb, err, "reading a pair")
	l.peers[id] = c
	return c
}

// keys is a set of keys (JWKS) that has the lab's.
func (l *lab) keys(tb testing.TB) string {
	tb.Helper()
	point, err := l.key.PublicKey.Bytes()
	fatalIf(tb, err, "encoding a key")
	b64 := base64.RawURLEncoding.EncodeToString
	return fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","kid":"k","x":%q,"y":%q}]}`, b64(point[1:33]), b64(point[33:]))
}

// token signs claims.
func (l *lab) token(tb testing.TB, claims map[string]any) string {
	tb.Helper()
	body, err := json.Marshal(claims)
	fatalIf(tb, err, "encoding claims")
	b64 := base64.RawURLEncoding.EncodeToString
	signed := b64([]byte(`{"alg":"ES256","kid":"k","typ":"JWT"}`)) + "." + b64(body)
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, l.key, sum[:])
	fatalIf(tb, err, "signing a token")
	return signed + "." + b64(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}

// tlvType is a type that the PROXY protocol leaves to applications.
const tlvType = 0xE0

// proxyHeader is a header of the PROXY protocol, version 2.
func proxyHeader(r request) []byte {
	from, to := netip.MustParseAddr(r.Remote), netip.MustParseAddrPort(r.Destination)
	family := byte(0x11)
	if from.Is6() {
		family = 0x21
	}
	body := slices.Concat(from.AsSlice(), to.Addr().AsSlice())
	body = binary.BigEndian.AppendUint16(body, 40000)
	body = binary.BigEndian.AppendUint16(body, to.Port())
	if r.TCP && r.Meta != "" {
		body = append(body, tlvType)
		body = binary.BigEndian.AppendUint16(body, uint16(len(r.Meta)))
		body = append(body, r.Meta...)
	}
	out := append([]byte("\r\n\r\n\x00\r\nQUIT\n"), 0x21, family)
	return append(binary.BigEndian.AppendUint16(out, uint16(len(body))), body...)
}

// ask sends a request to the listener of a set.
func (l *lab) ask(t *testing.T, set string, r request) (answer, error) {
	t.Helper()
	r = r.filled()
	kind := "http-"
	if r.TCP {
		kind = "tcp-"
	}
	ctx, cancel := context.WithTimeout(t.Context(), envoytest.Patience)
	defer cancel()
	source := netip.MustParseAddr(r.Source)
	at := slices.IndexFunc(l.addresses[kind+set], func(a string) bool { return strings.HasPrefix(a, "[") == source.Is6() })
	if at < 0 {
		return answer{}, fmt.Errorf("no address for %v among %q", source, l.addresses[kind+set])
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: source.AsSlice()}}
	conn, err := d.DialContext(ctx, "tcp", l.addresses[kind+set][at])
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if _, err := conn.Write(proxyHeader(r)); err != nil {
		return answer{}, err
	}
	if r.Peer != "" {
		config := &tls.Config{InsecureSkipVerify: true, ServerName: r.SNI}
		if r.Peer != "none" {
			config.Certificates = []tls.Certificate{l.peer(t, r.Peer)}
		}
		secure := tls.Client(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return answer{}, fmt.Errorf("handshake: %w", err)
		}
		conn = secure
	}
	if r.TCP {
		return echoed(conn)
	}
	return l.exchange(t, conn, r)
}

// echoed tells whether a line comes back. A connection that is denied ends without one.
func echoed(conn net.Conn) (answer, error) {
	const line = "hello\n"
	if _, err := io.WriteString(conn, line); err != nil {
		return answer{}, err
	}
	got := make([]byte, len(line))
	n, err := io.ReadFull(conn, got)
	switch {
	case err == nil && string(got) == line:
		return answer{Allowed: true}, nil
	case n == 0 && !errors.Is(err, net.ErrClosed):
		return answer{}, nil
	default:
		return answer{}, fmt.Errorf("%q came back: %w", got[:n], err)
	}
}

func (l *lab) exchange(t *testing.T, conn net.Conn, r request) (answer, error) {
	t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n", r.Method, r.Path, r.Host)
	for _, headers := range []map[string]string{r.Headers, r.Again} {
		for k, v := range headers {
			fmt.Fprintf(&text, "%s: %s\r\n", k, v)
		}
	}
	if r.Meta != "" {
		fmt.Fprintf(&text, "x-meta: %s\r\n", r.Meta)
	}
	if r.Claims != nil {
		fmt.Fprintf(&text, "Authorization: Bearer %s\r\n", l.token(t, r.Claims))
	}
	if _, err := io.WriteString(conn, text.String()+"\r\n"); err != nil {
		return answer{}, err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: r.Method})
	if err != nil {
		return answer{}, fmt.Errorf("reading an answer: %w", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{}, err
	}
	switch res.StatusCode {
	case http.StatusOK:
		shadows := map[string]string{}
		for action, header := range map[string]string{"allow": "x-allow", "deny": "x-deny"} {
			if v := res.Header.Get(header); v != "" && v != "-" {
				shadows[action] = v
			}
		}
		return answer{Allowed: true, Shadows: shadows}, nil
	case http.StatusForbidden:
		_, policy, found := strings.Cut(string(body), "rbac_access_denied_matched_policy[")
		policy, closed := strings.CutSuffix(policy, "]")
		if r.Method != http.MethodHead && (!found || !closed) {
			return answer{}, fmt.Errorf("403 because of %q", body)
		}
		if policy == "none" {
			policy = ""
		}
		return answer{Policy: policy}, nil
	default:
		return answer{}, fmt.Errorf("status %d, %q", res.StatusCode, body)
	}
}
