package gateways

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/hosttest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

// lab is the mesh that the pages take for granted. Numbers of hosts are those of lab.yaml.
type lab struct {
	*hosttest.LAN
	t                                          *testing.T
	ingress, egress, client, services, outside *hosttest.Host
	// keys are those of the ingress gateway, and others an authority that it had before or gets later.
	keys, others *meshtest.KeyRing
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{LAN: hosttest.New(t), t: t}
	l.ingress, l.egress, l.client = l.Host("ingress", 2), l.Host("egress", 3), l.Host("client", 4)
	l.services, l.outside = l.Host("services", 5), l.Host("outside", 6)
	l.keys = meshtest.NewKeyRing(t, filepath.Join(l.Dir, "credentials"))
	l.others = meshtest.NewKeyRing(t, l.keys.Dir)
	for name, ring := range map[string]*meshtest.KeyRing{"ca.pem": l.keys, "others.pem": l.others} {
		l.file(name, ring.RootPEM())
	}
	_, chain, key := l.keys.Issue("client.example.com")
	l.file("client.pem", chain+key)
	l.serve()
	l.Write("lab.yaml", l.own(l.read("lab.yaml")))
	l.StartServer()
	trusted := l.egress.Dir("trusted")
	if err := os.WriteFile(filepath.Join(trusted, "ca-certificates.crt"), []byte(l.keys.RootPEM()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(trusted, "ca-certificates.crt"), 0o644); err != nil {
		t.Fatal(err)
	}
	l.egress.Bind("/etc/ssl/certs", trusted)
	for _, h := range []*hosttest.Host{l.egress, l.client} { // there is no DNS
		h.Etc("hosts", "127.0.0.1 localhost\n"+l.outside.IP4()+" edition.cnn.com\n")
	}
	l.start(l.ingress, "istio-system/ingress", "router")
	l.start(l.egress, "istio-system/egress", "router")
	l.start(l.client, "default/client", "sidecar", "--loopback-addresses")
	l.AwaitLive("ingress", "egress", "client")
	return l
}

// read is a file of the example.
func (l *lab) read(path string) string {
	l.t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		l.t.Fatal(err)
	}
	return string(content)
}

// own has the addresses of the test's network.
func (l *lab) own(text string) string {
	for n := 2; n <= 6; n++ {
		text = strings.ReplaceAll(text, fmt.Sprintf("192.0.2.%d", n), l.IP4(n))
	}
	return text
}

// file is a file of the clients.
func (l *lab) file(name, content string) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.control(), name), []byte(content), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) control() string { return l.Control.Dir("files") }

// start starts an agent with a user of its own, which may listen at ports below 1024 by the capability that
// the agent's unit has.
func (l *lab) start(h *hosttest.Host, workload, kind string, more ...string) {
	l.t.Helper()
	token := filepath.Join(h.Dir("agent"), "token")
	if err := os.WriteFile(token, []byte(l.Token("--host", h.Label, "--workload", workload, "--type", kind)), 0o600); err != nil {
		l.t.Fatal(err)
	}
	for _, dir := range []string{l.StateDir(h.Label), l.RunDir(h.Label), l.keys.Dir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			l.t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Dir(l.StateDir(h.Label)), 0o755); err != nil {
		l.t.Fatal(err)
	}
	for _, path := range []string{l.StateDir(h.Label), l.RunDir(h.Label), token} {
		if err := os.Chown(path, hosttest.ProxyUser, hosttest.ProxyUser); err != nil {
			l.t.Fatal(err)
		}
	}
	fairlead, _ := l.Binaries()
	id := strconv.Itoa(hosttest.ProxyUser)
	h.Start(h.Label, 0, append([]string{
		"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--inh-caps=-all,+net_bind_service", "--ambient-caps=-all,+net_bind_service",
		fairlead, "agent", "--address", h.IP4(), "--envoy", envoytest.Binary(l.t), "--state-dir", l.StateDir(h.Label), "--run-dir", l.RunDir(h.Label),
		"--drain-time", "1s", "--token-file", token, "--credentials-dir", l.keys.Dir,
	}, more...)...)
}

// put writes a credential for the gateways, which their user may read.
func (l *lab) put(ring *meshtest.KeyRing, folder, name string, more map[string]string) {
	l.t.Helper()
	_, chain, key := ring.Issue(name)
	files := map[string]string{"tls.crt": chain, "tls.key": key}
	maps.Copy(files, more)
	dir := filepath.Join(ring.Dir, folder)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		l.t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name+".new"), []byte(text), 0o600); err != nil {
			l.t.Fatal(err)
		}
	}
	for _, path := range append(slices.Collect(l.paths(dir, files)), dir, ring.Dir) {
		if err := os.Chown(path, hosttest.ProxyUser, hosttest.ProxyUser); err != nil {
			l.t.Fatal(err)
		}
	}
	for name := range files {
		if err := os.Rename(filepath.Join(dir, name+".new"), filepath.Join(dir, name)); err != nil {
			l.t.Fatal(err)
		}
	}
}

func (l *lab) paths(dir string, files map[string]string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for name := range files {
			if !yield(filepath.Join(dir, name+".new")) {
				return
			}
		}
	}
}

// serve starts the services and the servers outside.
func (l *lab) serve() {
	l.t.Helper()
	l.listen(l.services, 8000, nil, httpbin("httpbin"))
	l.listen(l.services, 5000, nil, httpbin("helloworld"))
	l.listen(l.services, 443, l.certificate("nginx.example.com", nil), httpbin("nginx"))
	l.listen(l.outside, 80, nil, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://edition.cnn.com"+r.URL.Path, http.StatusMovedPermanently)
	})
	l.listen(l.outside, 443, l.certificate("edition.cnn.com", nil), httpbin("cnn"))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(l.keys.RootPEM()))
	l.listen(l.outside, 8443, l.certificate("my-nginx.mesh-external.svc.cluster.local", pool), httpbin("external"))
	for port, name := range map[int]string{9001: "one", 9002: "two"} {
		go func(at net.Listener) {
			for {
				c, err := at.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					if line, err := bufio.NewReader(c).ReadString('\n'); err == nil {
						_, _ = fmt.Fprint(c, name, " ", line)
					}
				}()
			}
		}(l.bind(l.services, port))
	}
}

func (l *lab) certificate(name string, clients *x509.CertPool) *tls.Config {
	l.t.Helper()
	_, chain, key := l.keys.Issue(name)
	pair, err := tls.X509KeyPair([]byte(chain), []byte(key))
	if err != nil {
		l.t.Fatal(err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if clients != nil {
		conf.ClientAuth, conf.ClientCAs = tls.RequireAndVerifyClientCert, clients
	}
	return conf
}

func (l *lab) bind(h *hosttest.Host, port int) (at net.Listener) {
	l.t.Helper()
	h.As(0, func() {
		var err error
		if at, err = (&net.ListenConfig{}).Listen(l.t.Context(), "tcp", fmt.Sprintf(":%d", port)); err != nil {
			l.t.Error(err)
		}
	})
	if at == nil {
		l.t.FailNow()
	}
	l.t.Cleanup(func() { _ = at.Close() })
	return at
}

func (l *lab) listen(h *hosttest.Host, port int, conf *tls.Config, handler http.HandlerFunc) {
	l.t.Helper()
	at := l.bind(h, port)
	if conf != nil {
		at = tls.NewListener(at, conf)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: envoytest.Patience}
	l.t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(at) }()
}

// httpbin answers /status/N with N, and says its name and who called.
func httpbin(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if code, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/status/")); err == nil {
			w.WriteHeader(code)
		}
		caller := "nobody"
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			caller = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		_, _ = fmt.Fprintf(w, "%s %s called by %s\n", name, r.Host, caller)
	}
}

// line says hello to an address, and returns the answer, which is empty if there is none.
func line(t *testing.T, address string) string {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		return ""
	}
	defer c.Close()
	if _, err := fmt.Fprintln(c, "hello"); err != nil {
		return ""
	}
	out, _ := bufio.NewReader(c).ReadString('\n')
	return out
}
