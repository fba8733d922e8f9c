package jwks

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// patience separates an answer from none, on a busy machine.
const patience = 30 * time.Second

// testPolicy is the policy, which allows some addresses of loopback.
type testPolicy struct {
	policy

	allowed map[netip.AddrPort]bool
}

func (p testPolicy) check(to netip.AddrPort, privateToo bool) error {
	if p.allowed[to] {
		return nil
	}
	return p.policy.check(to, privateToo)
}

func (p testPolicy) checkName(host string, port uint16, privateToo bool) error {
	if a, err := netip.ParseAddr(host); err == nil && p.allowed[netip.AddrPortFrom(a, port)] {
		return nil
	}
	return p.policy.checkName(host, port, privateToo)
}

// webTo fetches from these servers besides those of which the policy approves.
func webTo(tb testing.TB, servers ...*httptest.Server) *web {
	tb.Helper()
	allowed := map[netip.AddrPort]bool{}
	for _, s := range servers {
		allowed[netip.MustParseAddrPort(s.Listener.Addr().String())] = true
	}
	return &web{policy: testPolicy{policy{nil, net.InterfaceAddrs}, allowed}, roots: &roots{}, refresh: DefaultRefresh}
}

func serve(tb testing.TB, h http.HandlerFunc) *httptest.Server {
	tb.Helper()
	s := httptest.NewServer(h)
	tb.Cleanup(s.Close)
	return s
}

func says(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

func goodSet(tb testing.TB) string {
	tb.Helper()
	return set(jwk(tb, pub("p256"), "a"))
}

func get(tb testing.TB, w *web, uri string) answer {
	tb.Helper()
	return w.fetch(tb.Context(), job{location: location{uri: uri}, timeout: patience})
}

func wantError(tb testing.TB, a answer, want string) {
	tb.Helper()
	if a.err == nil || !strings.Contains(a.err.Error(), want) {
		tb.Errorf("error %v, want %q", a.err, want)
	}
	if a.set != nil {
		tb.Errorf("keys beside the error: %v", a.set)
	}
}

func TestFetches(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); r.URL.Path == "/login" && (user != "me" || password != "secret") {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, goodSet(t))
	})
	w := webTo(t, s)
	a := get(t, w, s.URL+"/keys?token=secret")
	if a.err != nil || len(a.set.Keys) != 1 || a.from != s.URL+"/keys" {
		t.Errorf("%v from %s: %v", a.set, a.from, a.err)
	}
	again := w.fetch(t.Context(), job{location{uri: s.URL}, patience, a.hash})
	if !again.unchanged || again.err != nil {
		t.Errorf("the same bytes again: %+v", again)
	}
	a = get(t, w, strings.Replace(s.URL, "://", "://me:secret@", 1)+"/login")
	if a.err != nil || strings.Contains(a.from, "me") {
		t.Errorf("with credentials: from %s: %v", a.from, a.err)
	}
}

func TestDiscovers(t *testing.T) {
	t.Parallel()
	var s *httptest.Server
	s = serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/tenant/.well-known/openid-configuration":
			_, _ = fmt.Fprintf(w, `{"issuer":"x","jwks_uri":%q}`, s.URL+"/keys")
		case "/wrong/.well-known/openid-configuration":
			_, _ = fmt.Fprint(w, `{"JWKS_URI":"http://192.0.2.1"}`)
		case "/loopback/.well-known/openid-configuration":
			_, _ = fmt.Fprint(w, `{"jwks_uri":"http://127.0.0.1:1/keys"}`)
		case "/file/.well-known/openid-configuration":
			_, _ = fmt.Fprint(w, `{"jwks_uri":"file:///etc/passwd"}`)
		case "/user/.well-known/openid-configuration":
			_, _ = fmt.Fprintf(w, `{"jwks_uri":%q}`, strings.Replace(s.URL, "://", "://a:b@", 1))
		case "/keys":
			_, _ = io.WriteString(w, goodSet(t))
		default:
			http.NotFound(w, r)
		}
	})
	w := webTo(t, s)
	ask := func(issuer string) answer {
		return w.fetch(t.Context(), job{location: location{uri: s.URL + issuer, discovery: true}, timeout: patience})
	}
	for _, issuer := range []string{"/tenant", "/tenant/"} {
		if a := ask(issuer); a.err != nil || a.from != s.URL+"/keys" {
			t.Errorf("%s: %v from %s: %v", issuer, a.set, a.from, a.err)
		}
	}
	wantError(t, ask("/other"), "the status 404")
	wantError(t, ask("/wrong"), "not an OpenID configuration")
	wantError(t, ask("/loopback"), "a loopback address")
	wantError(t, ask("/file"), "http and https only")
	wantError(t, ask("/user"), "a user name")
	wantError(t, w.fetch(t.Context(), job{location: location{uri: "testing@secure.istio.io", discovery: true}, timeout: patience}), "http and https only")
}

func TestHostileAnswers(t *testing.T) {
	t.Parallel()
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	zeros := make([]byte, 1<<20)
	for range 64 {
		_, _ = z.Write(zeros)
	}
	_ = z.Close()
	var sent atomic.Int64 // of the endless ones
	stream := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			n, err := w.Write(zeros)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"gigabyte", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1073741824")
			stream(w, r)
		}, "has 1073741824 bytes"},
		{"endless", stream, "more than 1048576 bytes"},
		{"gzip", func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept-Encoding") != "" {
				t.Error("compressed answers are asked for")
			}
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		}, "compressed"},
		{"gzip-unsaid", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bomb.Bytes()) }, "not JSON"},
		{"html", says("<html>log in</html>"), "not JSON"},
		{"empty", says(""), "not JSON"},
		{"empty-set", says(`{"keys":[]}`), "no key of the set can be used: it is empty"},
		{"status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, "the status 403"},
		{"not-modified", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) }, "the status 304"},
		{"header", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", maxHeader*2))
			_, _ = io.WriteString(w, goodSet(t))
		}, "header"},
		{"half", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, goodSet(t)[:20])
		}, "EOF"},
		{"closed", func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = c.Close()
			}
		}, "EOF"},
		{"redirect-loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/", http.StatusFound) }, "more than 5 redirects"},
		{"redirect-loopback", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}, "a loopback address"},
		{"redirect-metadata", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		}, "link-local"},
		{"redirect-private", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://10.0.0.1/", http.StatusFound)
		}, "a private address"},
		{"redirect-number", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://2130706433/", http.StatusFound)
		}, "no IP address"},
		{"redirect-file", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(http.StatusFound)
		}, "http and https only"},
		{"redirect-user", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://a:b@"+r.Host+"/", http.StatusFound)
		}, "a user name"},
		{"redirect-nowhere", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusFound) }, "the status 302"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, c.handler)
			a := get(t, webTo(t, s), s.URL+"/?token=secret")
			wantError(t, a, c.want)
			if strings.Contains(fmt.Sprint(a.err, a.from), "secret") {
				t.Errorf("the query is in %v, or in %s", a.err, a.from)
			}
		})
	}
	t.Cleanup(func() {
		// What the kernel's buffers take is sent, too.
		if n := sent.Load(); n > 256<<20 {
			t.Errorf("%d bytes were taken", n)
		}
	})
}

// The time is for all of it: the headers, a body byte by byte, redirects.
func TestSlowAnswersEnd(t *testing.T) {
	t.Parallel()
	wait := func(r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-time.After(patience):
		}
	}
	for name, handler := range map[string]http.HandlerFunc{
		"headers": func(_ http.ResponseWriter, r *http.Request) { wait(r) },
		"body": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "{")
			_ = http.NewResponseController(w).Flush()
			wait(r)
		},
		"drip": func(w http.ResponseWriter, r *http.Request) {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for end := time.Now().Add(patience); time.Now().Before(end); {
				select {
				case <-r.Context().Done():
					return
				case <-tick.C:
				}
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, handler)
			a := webTo(t, s).fetch(t.Context(), job{location: location{uri: s.URL}, timeout: 300 * time.Millisecond})
			wantError(t, a, "not there in time")
		})
	}
}

func TestAddressesAreRefused(t *testing.T) {
	t.Parallel()
	w := webTo(t)
	for uri, want := range map[string]string{
		"http://127.0.0.1/":                        "a loopback address",
		"http://[::1]:15014/":                      "a loopback address",
		"http://localhost/":                        "a loopback address",
		"http://[::ffff:127.0.0.1]/":               "a loopback address",
		"http://[64:ff9b::a9fe:a9fe]/":             "a link-local address in an IPv6 address",
		"http://169.254.169.254/latest/":           "a link-local address",
		"http://[fe80::1%25lo]/":                   "an address of one link",
		"http://0/":                                "no IP address",
		"http://0.0.0.0/":                          "an unspecified address",
		"http://10.1.2.3/":                         "a private address",
		"http://93.184.216.34:99999/":              "port",
		"http://:80/":                              "no host",
		"http:///keys":                             "no host",
		"ftp://93.184.216.34/":                     "http and https only",
		"unix:///run/x.sock":                       "http and https only",
		"":                                         "http and https only",
		"http://a b/":                              "cannot be read",
		"http://１２７.0.0.1/":                        "not in ASCII",
		"http://ⓛocalhost/":                        "not in ASCII",
		"http://%EF%BC%91.example.com/":            "not in ASCII",
		"https://x/" + strings.Repeat("x", maxURI): "longer",
	} {
		a := get(t, w, uri)
		wantError(t, a, want)
	}
	// A private address is dialled for those who may: nothing listens there.
	p := w.policy.check(netip.MustParseAddrPort("10.1.2.3:443"), true)
	if p != nil {
		t.Errorf("a private address, which is allowed: %v", p)
	}
}

// nameServer answers each question for an IPv4 address with the next of a list, and then with
// the last again.
func nameServer(tb testing.TB, addresses ...string) (resolver *net.Resolver, asked *atomic.Int64) {
	tb.Helper()
	asked = &atomic.Int64{}
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				i := min(int(asked.Add(1))-1, len(addresses)-1)
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
					Body:   &dnsmessage.AResource{A: netip.MustParseAddr(addresses[i]).As4()},
				}}
			}
			if out, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(out, from)
			}
		}
	})
	tb.Cleanup(func() { _ = conn.Close(); wg.Wait() })
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}, asked
}

// A name that leads to an allowed address once, and to a refused one the next time, gains
// nothing: each connection is judged by the address to which it is made.
func TestNameThatChanges(t *testing.T) {
	t.Parallel()
	var reached atomic.Bool
	// The victim has the same port at another address of loopback.
	victim := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	s := serve(t, says(goodSet(t)))
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	l, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Skip("no second address of loopback with this port:", err)
	}
	_ = victim.Listener.Close()
	victim.Listener = l
	victim.Start()
	t.Cleanup(victim.Close)

	w := webTo(t, s)
	var asked *atomic.Int64
	w.resolver, asked = nameServer(t, "127.0.0.1", "127.0.0.2", "169.254.169.254")
	uri := "http://issuer.test.:" + port + "/"
	if a := get(t, w, uri); a.err != nil {
		t.Fatalf("the first time: %v", a.err)
	}
	wantError(t, get(t, w, uri), "a loopback address")
	wantError(t, get(t, w, uri), "a link-local address")
	if asked.Load() != 3 {
		t.Errorf("the name was looked up %d times, want once for each connection", asked.Load())
	}
	if reached.Load() {
		t.Error("the victim was reached")
	}
}

// A redirect to a name is judged by where the name leads then.
func TestRedirectToANameThatLeadsInside(t *testing.T) {
	t.Parallel()
	var port string
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://inside.test.:"+port+"/", http.StatusTemporaryRedirect)
	})
	_, port, _ = net.SplitHostPort(s.Listener.Addr().String())
	w := webTo(t, s)
	w.resolver, _ = nameServer(t, "127.0.0.1", "127.0.0.2")
	wantError(t, get(t, w, "http://issuer.test.:"+port+"/"), "127.0.0.2:"+port+": it is a loopback address")
}

func TestTLS(t *testing.T) {
	t.Parallel()
	plainServer := serve(t, says(goodSet(t)))
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/down":
			http.Redirect(w, r, plainServer.URL, http.StatusFound)
		case "/.well-known/openid-configuration":
			_, _ = fmt.Fprintf(w, `{"jwks_uri":%q}`, plainServer.URL)
		default:
			_, _ = io.WriteString(w, goodSet(t))
		}
	}))
	t.Cleanup(s.Close)
	s.Config.ErrorLog = nil
	w := webTo(t, s, plainServer)
	wantError(t, get(t, w, s.URL), "certificate")

	ca := filepath.Join(t.TempDir(), "ca.pem")
	w.roots = &roots{path: ca}
	wantError(t, get(t, w, s.URL), "reading the authorities of issuers")
	write(t, ca, "no certificate")
	wantError(t, get(t, w, s.URL), "has no certificate in PEM")
	write(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	if a := get(t, w, s.URL); a.err != nil {
		t.Fatal(a.err)
	}
	write(t, ca, "half a cert") // it is being replaced
	if a := get(t, w, s.URL); a.err != nil {
		t.Error("while the file is being replaced:", a.err)
	}
	wantError(t, get(t, w, s.URL+"/down"), "from https to http")
	a := w.fetch(t.Context(), job{location: location{uri: s.URL, discovery: true}, timeout: patience})
	wantError(t, a, "by https, and says")

	old := httptest.NewUnstartedServer(says(goodSet(t)))
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	old.StartTLS()
	t.Cleanup(old.Close)
	w = webTo(t, old)
	wantError(t, get(t, w, old.URL), "protocol version")
}

// Through a proxy, the proxy connects; the URI's own host is judged before.
func TestProxy(t *testing.T) {
	t.Parallel()
	var asked atomic.Value
	proxy := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.Method + " " + r.URL.String() + r.Header.Get("Proxy-Authorization"))
		_, _ = io.WriteString(w, goodSet(t))
	})
	w := webTo(t) // the proxy's own address is not asked about
	w.proxy, _ = url.Parse(strings.Replace(proxy.URL, "://", "://me:secret@", 1))
	if a := get(t, w, "http://issuer.invalid/keys"); a.err != nil {
		t.Fatal(a.err)
	}
	if got := asked.Load(); got != "GET http://issuer.invalid/keysBasic bWU6c2VjcmV0" {
		t.Errorf("the proxy was asked %v", got)
	}
	asked.Store("")
	for _, uri := range []string{"http://127.0.0.1/", "http://localhost/", "http://2130706433/", "http://metadata.google.internal/", "http://10.0.0.1/", "http://[::ffff:169.254.169.254]/"} {
		wantError(t, get(t, w, uri), "keys may not be fetched from")
	}
	if asked.Load() != "" {
		t.Errorf("the proxy was asked %v", asked.Load())
	}
	_ = proxy.Config.Close()
	if a := get(t, w, "https://issuer.invalid/keys"); a.err == nil || strings.Contains(a.err.Error(), "secret") {
		t.Errorf("without the proxy: %v", a.err)
	}
}

// The environment of the server is not this package's setting.
func TestProxyOfTheEnvironmentIsNotUsed(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	s := serve(t, says(goodSet(t)))
	w := webTo(t, s)
	w.resolver, _ = nameServer(t, "127.0.0.1")
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	if a := get(t, w, "http://issuer.test.:"+port); a.err != nil {
		t.Error(a.err)
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"https://me:secret@login.example.com:8443/a/b?token=secret#secret": "https://login.example.com:8443/a/b",
		"https://secret@login.example.com":                                 "https://login.example.com",
		"https:me:secret@login.example.com/?secret":                        "login.example.com/",
		"http://me:sec%zzret@login.example.com/#secret":                    "login.example.com/",
		"testing@secure.istio.io":                                          "testing@secure.istio.io",
		"accounts.example.com":                                             "accounts.example.com",
		"":                                                                 "",
	} {
		if got := redact(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

func write(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		tb.Fatal(err)
	}
	// As a new file: the time of a file that is written twice may be the same.
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		tb.Fatal(err)
	}
}

func TestFileNames(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"https://login.example.com/oauth2/keys":       "login.example.com/oauth2/keys.json",
		"https://accounts.example.com":                "accounts.example.com.json",
		"https://accounts.example.com/":               "accounts.example.com.json",
		"http://Me:secret@Login.example.com:8080/a#x": "login.example.com:8080/a.json",
		"https://login.example.com/keys?p=a/b":        "login.example.com/keys%3Fp%3Da/b.json",
		"https://login.example.com/a/../../../etc/x":  "login.example.com/a/%2E%2E/%2E%2E/%2E%2E/etc/x.json",
		"https://../../etc/passwd":                    "%2E%2E/%2E%2E/etc/passwd.json",
		"https://a/%2e%2e/%2fetc":                     "a/%252e%252e/%252fetc.json",
		"https://a//b":                                "a/%/b.json",
		"testing@secure.istio.io":                     "testing@secure.istio.io.json",
		"../../etc/passwd":                            "%2E%2E/%2E%2E/etc/passwd.json",
		"/etc/passwd":                                 "%/etc/passwd.json",
		"..":                                          "%2E%2E.json",
		"a\x00b\n":                                    "a%00b%0A.json",
		"":                                            "%.json",
	} {
		if got := FileName(uri); got != want {
			t.Errorf("%q is in %q, want %q", uri, got, want)
		}
	}
}

func FuzzFileName(f *testing.F) {
	for _, s := range []string{"https://a/b", "../..", "https://../x", "//", "https://a/%2e%2e/x?../y", "a\\..\\b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		name := FileName(uri)
		if !filepath.IsLocal(name) || !strings.HasSuffix(name, ".json") || filepath.Clean(name) != name {
			t.Errorf("%q leads to %q", uri, name)
		}
	})
}

func TestFilesThatAreNone(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	d := &directory{root}
	ask := func(uri string) answer { return d.fetch(t.Context(), job{location: location{uri: uri}}) }
	wantError(t, ask("https://issuer/missing"), "no such file")
	if err := os.MkdirAll(filepath.Join(root, "issuer", "dir.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	wantError(t, ask("https://issuer/dir"), "is not a file")
	if err := unix.Mkfifo(filepath.Join(root, "issuer", "pipe.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantError(t, ask("https://issuer/pipe"), "is not a file")
	write(t, filepath.Join(root, "issuer", "large.json"), strings.Repeat(" ", MaxBody+1))
	wantError(t, ask("https://issuer/large"), "more than")
	wantError(t, ask("https://issuer/"+strings.Repeat("x", 300)), "name too long")
	write(t, filepath.Join(root, "issuer", "keys.json"), goodSet(t))
	if a := ask("https://issuer/keys"); a.err != nil || a.from != filepath.Join(root, "issuer", "keys.json") {
		t.Errorf("from %s: %v", a.from, a.err)
	}
}
