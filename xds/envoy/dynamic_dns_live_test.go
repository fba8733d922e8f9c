package envoy_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// nameServer answers with addresses, and counts what it is asked for.
type nameServer struct {
	port  int
	mu    sync.Mutex
	asked map[string]int
}

func newNameServer(t *testing.T, addresses map[string]string) *nameServer {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	fatalIf(t, err, "listening")
	s := &nameServer{asked: map[string]int{}}
	_, port, err := net.SplitHostPort(conn.LocalAddr().String())
	fatalIf(t, err, "reading an address")
	s.port, err = strconv.Atoi(port)
	fatalIf(t, err, "reading a port")
	started, ended := make(chan struct{}), make(chan struct{})
	srv := &dns.Server{PacketConn: conn, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		name := strings.TrimSuffix(dns.CanonicalName(q.Question[0].Name), ".")
		s.mu.Lock()
		s.asked[name]++
		s.mu.Unlock()
		r := new(dns.Msg).SetReply(q)
		if a := addresses[name]; a != "" && q.Question[0].Qtype == dns.TypeA {
			r.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}, A: net.ParseIP(a)}}
		} else if a == "" {
			r.Rcode = dns.RcodeNameError
		}
		_ = w.WriteMsg(r)
	})}
	go func() {
		defer close(ended)
		_ = srv.ActivateAndServe()
	}()
	<-started
	t.Cleanup(func() {
		_ = srv.Shutdown()
		<-ended
	})
	return s
}

func (s *nameServer) askedFor(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[name]
}

// resolver has an Envoy ask the server.
func (s *nameServer) resolver() map[string]any {
	return map[string]any{"name": "envoy.network.dns_resolver.cares", "typed_config": map[string]any{
		"@type":     "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig",
		"resolvers": []any{map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": s.port}}},
	}}
}

// answerAt is a server at an address that answers with a word, by TLS if it has a certificate.
func answerAt(t *testing.T, address, word string, cert *tls.Certificate) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	fatalIf(t, err, "listening at %s", address)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, word) }))
	_ = srv.Listener.Close()
	srv.Listener = l
	if cert == nil {
		srv.Start()
	} else {
		srv.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12}
		srv.StartTLS()
	}
	t.Cleanup(srv.Close)
}

// answerH2C answers by HTTP/2 in plaintext, and by nothing else.
func answerH2C(t *testing.T, address, word string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	fatalIf(t, err, "listening at %s", address)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, word) }))
	_ = srv.Listener.Close()
	srv.Listener, srv.Config.Protocols = l, new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
}

// TestHostsAreLookedUpPerRequest: with resolution DYNAMIC_DNS each request goes to its own host, each TLS connection
// to its server name, and TLS that begins at the proxy verifies the host. Nothing else is looked up.
func TestHostsAreLookedUpPerRequest(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			envoytest.BinaryVersion(t, version) // or skip, before anything runs
			names := newNameServer(t, map[string]string{
				"a.dyn.example": "127.0.0.21", "b.dyn.example": "127.0.0.22", "a.tls.example": "127.0.0.21", "b.tls.example": "127.0.0.22",
				"other.example": "127.0.0.21", "a.off.example": "127.0.0.21", "a.h2.example": "127.0.0.23",
			})
			ca, dir := newAuthority(t), t.TempDir()
			fatalIf(t, os.WriteFile(filepath.Join(dir, "ca.pem"), []byte(ca.rootPEM()), 0o600), "writing roots")
			cert := ca.serverCertificate(t, "a.dyn.example", "a.tls.example")
			ports := envoytest.FreePorts(t, 3)
			plain, passed, begun := ports[0], ports[1], ports[2]
			answerH2C(t, at("127.0.0.23", begun), "h2")
			answerAt(t, at("127.0.0.21", plain), "a", nil)
			answerAt(t, at("127.0.0.22", plain), "b", nil)
			answerAt(t, at("127.0.0.21", passed), "a", &cert)
			answerAt(t, at("127.0.0.21", begun), "a", &cert)
			answerAt(t, at("127.0.0.22", begun), "b", &cert) // not its name
			m := strings.NewReplacer("PLAIN", strconv.Itoa(plain), "PASSED", strconv.Itoa(passed), "BEGUN", strconv.Itoa(begun), "DIR", dir).Replace(dynamicMesh)
			f := &fixture{ca: ca, version: version, rewire: func(boot map[string]any) { boot["typedDnsResolverConfig"] = names.resolver() }}
			e := f.start(t, snapshotOf(t, m, "outboundTrafficPolicy: {mode: REGISTRY_ONLY}"), proxyFile{Namespace: "shop", ServiceAccount: "web", IP: clientIP, Interception: "NONE"})
			asks := func(port int, host, want string, code int) {
				t.Helper()
				envoytest.Eventually(t, envoytest.Patience, func() error {
					status, text, err := get(t.Context(), at(clientIP, port), http.Header{"Host": {host + ":" + strconv.Itoa(port)}})
					if err != nil || status != code || code == http.StatusOK && text != want {
						return fmt.Errorf("%s answers %d %q, %w; want %d %q", host, status, text, err, code, want)
					}
					return nil
				})
			}
			asks(plain, "a.dyn.example", "a", http.StatusOK)
			asks(plain, "b.dyn.example", "b", http.StatusOK)
			asks(plain, "gone.dyn.example", "", http.StatusServiceUnavailable)
			asks(plain, "other.example", "", http.StatusBadGateway)
			asks(plain, "dyn.example", "", http.StatusBadGateway)
			asks(begun, "a.tls.example", "a", http.StatusOK)
			asks(begun, "b.tls.example", "", http.StatusServiceUnavailable)
			asks(begun, "a.off.example", "a", http.StatusOK)
			asks(begun, "a.h2.example", "h2", http.StatusOK)
			byTLS := func(name string) (string, error) {
				return callTLS(t.Context(), at(clientIP, passed), &tls.Config{InsecureSkipVerify: true, ServerName: name})
			}
			if got, err := byTLS("a.dyn.example"); got != "a" {
				t.Errorf("by TLS: %q, %v", got, err)
			}
			for _, name := range []string{"other.example", "gone.dyn.example", "dyn.example"} {
				if got, err := byTLS(name); err == nil {
					t.Errorf("by TLS to %s: %q", name, got)
				}
			}
			for _, name := range []string{"other.example", "dyn.example"} {
				if n := names.askedFor(name); n > 0 {
					t.Errorf("%s was looked up %d times", name, n)
				}
			}
			e.NoRejections(t)
		})
	}
}

const dynamicMesh = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: dyn, namespace: shop}
spec:
  hosts: ["*.dyn.example"]
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{number: PLAIN, name: http, protocol: HTTP}, {number: PASSED, name: tls, protocol: TLS}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: tls, namespace: shop}
spec:
  hosts: ["*.tls.example", "*.off.example"]
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{number: BEGUN, name: http, protocol: HTTP}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: h2, namespace: shop}
spec:
  hosts: ["*.h2.example"]
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{number: BEGUN, name: http2, protocol: HTTP2}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: tls, namespace: shop}
spec: {host: "*.tls.example", trafficPolicy: {tls: {mode: SIMPLE, caCertificates: DIR/ca.pem}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: unverified, namespace: shop}
spec: {host: "*.off.example", trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true}}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec: {egress: [{bind: 127.0.0.11, hosts: ["./*"]}]}
`
