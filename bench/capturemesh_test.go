package bench

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/hosttest"
)

const (
	capturedServices = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: echo, namespace: shop}
spec:
  hosts: [echo.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: echo}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: client, namespace: shop}
spec: {address: CLIENT, labels: {app: client}, serviceAccount: client}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: echo, namespace: shop}
spec: {address: ECHO, ports: {http: 8080}, labels: {app: echo}, serviceAccount: echo}
`
	listenerServices = capturedServices + `
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: client, namespace: shop}
spec:
  workloadSelector: {labels: {app: client}}
  egress: [{port: {number: 80, name: http, protocol: HTTP}, bind: CLIENT, hosts: ["./*"]}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: echo, namespace: shop}
spec:
  workloadSelector: {labels: {app: echo}}
  ingress: [{port: {number: 9080, name: http, protocol: HTTP}, bind: ECHO, defaultEndpoint: "127.0.0.1:8080"}]
  egress: [{hosts: ["~/*"]}]
`
	noMTLS = `
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: mesh, namespace: istio-system}
spec: {mtls: {mode: DISABLE}}
`
)

// travelled is a path that exists: from a host to an address that leads to the application of another.
type travelled struct {
	from    *hosttest.Host
	user    int
	to      string
	envoys  []int // process ids
	secured bool  // the application is told who calls
}

// newTravelled makes a mesh of two hosts.
func newTravelled(b *testing.B, manifests, config string) *travelled {
	b.Helper()
	l := hosttest.New(b)
	client, echo := l.Host("client", 2), l.Host("echo", 3)
	byCapture := !strings.Contains(manifests, "kind: Sidecar")
	port := "9080"
	if byCapture {
		port = "8080"
	}
	text := strings.NewReplacer("CLIENT", client.IP4(), "ECHO", echo.IP4(), "http: 8080", "http: "+port).Replace(manifests)
	l.Write("mesh.yaml", text)
	file := filepath.Join(l.Dir, "meshconfig.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		b.Fatal(err)
	}
	l.StartServer("--mesh-config", file)
	serveEcho(b, echo)
	t := &travelled{from: client, user: undeclared, to: net.JoinHostPort(client.IP4(), "80"), secured: !strings.Contains(manifests, noMTLS)}
	var args []string
	if byCapture {
		args = []string{"--capture"}
		client.Capture(fmt.Sprintf("workloads: [{name: client, users: [%d]}]\n", declared))
		echo.Capture("workloads: [{name: echo, ports: [8080]}]\n")
		t.user = declared
	} else {
		for _, h := range []*hosttest.Host{client, echo} { // Envoy may listen at port 80
			h.Exec("sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start")
		}
	}
	client.StartAgent("shop/client", client.IP4(), args...)
	echo.StartAgent("shop/echo", echo.IP4(), args...)
	l.AwaitLive("client", "echo")
	t.envoys = []int{l.EnvoyPID("client"), l.EnvoyPID("echo")}
	if byCapture {
		lines, err := l.CLI("addresses", "--etc-hosts", "virtual", "--run-dir", l.RunDir("server"))
		if err != nil {
			b.Fatal(err)
		}
		at := regexp.MustCompile(`(?m)^(240\S+) echo\.shop\.internal$`).FindStringSubmatch(lines)
		if at == nil {
			b.Fatalf("no virtual address:\n%s", lines)
		}
		t.to = net.JoinHostPort(at[1], "80")
	}
	return t
}

// newDirect is a path without Envoys.
func newDirect(b *testing.B) *travelled {
	b.Helper()
	l := hosttest.New(b)
	client, echo := l.Host("client", 2), l.Host("echo", 3)
	serveEcho(b, echo)
	return &travelled{from: client, user: undeclared, to: net.JoinHostPort(echo.IP4(), "8080")}
}

// serveEcho is the application: an empty answer, with who called.
func serveEcho(b *testing.B, h *hosttest.Host) {
	b.Helper()
	var l net.Listener
	var err error
	h.As(declared, func() { l, err = (&net.ListenConfig{}).Listen(b.Context(), "tcp", ":8080") })
	if err != nil {
		b.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Date"] = nil
		w.Header().Set("caller", r.Header.Get("X-Forwarded-Client-Cert"))
	})}
	go func() { _ = s.Serve(l) }()
	b.Cleanup(func() { _ = s.Close() })
}

// works says whether a request arrives, with the caller's identity where it should.
func (t *travelled) works(name string) error {
	var who string
	var err error
	t.from.As(t.user, func() {
		var c *caller
		if c, err = t.dial(); err == nil {
			who, err = c.get()
			err = errors.Join(err, c.conn.Close())
		}
	})
	if has := strings.Contains(who, "spiffe://"); err == nil && has != t.secured {
		err = fmt.Errorf("%s: the caller is %q", name, who)
	}
	return err
}

func (t *travelled) dial() (*caller, error) {
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(context.Background(), "tcp", t.to)
	if err != nil {
		return nil, err
	}
	return &caller{conn: conn, r: bufio.NewReader(conn)}, nil
}

// get sends a request, and gives the caller that the server was told of.
func (c *caller) get() (who string, err error) {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c.conn, "GET / HTTP/1.1\r\nhost: echo.shop.internal\r\n\r\n"); err != nil {
		return "", err
	}
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", errors.New(res.Status)
	}
	return res.Header.Get("caller"), nil
}

// go1 is one turn: n requests on four connections that are kept, or on a new one each.
func (t *travelled) go1(b *testing.B, n int, kept bool) turn {
	b.Helper()
	before := t.clock(b)
	took, errs := make([][]float64, connections), make([]error, connections)
	var wait sync.WaitGroup
	for i := range connections {
		wait.Go(func() {
			t.from.As(t.user, func() { took[i], errs[i] = t.ask(n/connections, kept) })
		})
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
	all := slices.Sorted(slices.Values(slices.Concat(took...)))
	return turn{cpu: float64((t.clock(b) - before).Nanoseconds()) / 1e3 / float64(len(all)), p50: all[len(all)/2], p99: all[len(all)*99/100]}
}

// ask gives how long each of n requests took, in milliseconds.
func (t *travelled) ask(n int, kept bool) (took []float64, err error) {
	var c *caller
	for range n {
		began := time.Now()
		if c == nil {
			if c, err = t.dial(); err != nil {
				return nil, err
			}
		}
		_, err := c.get()
		took = append(took, float64(time.Since(began).Nanoseconds())/1e6)
		if err != nil {
			return nil, errors.Join(err, c.conn.Close())
		}
		if !kept {
			_ = c.conn.Close()
			c = nil
		}
	}
	if c != nil {
		err = c.conn.Close()
	}
	return took, err
}

func (t *travelled) clock(b *testing.B) (sum time.Duration) {
	b.Helper()
	for _, pid := range t.envoys {
		sum += clock(b, pid)
	}
	return sum
}

// staticEnvoy is an Envoy that listens at AT and goes on to TO, with the router alone.
const staticEnvoy = `
static_resources:
  listeners:
  - address: {socket_address: {address: AT, port_value: PORT}}
    BUFFERS
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          FORWARD
          route_config:
            virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: next, timeout: 0s}}]}]
          http_filters: [{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
      IN
  clusters:
  - name: next
    BUFFERS
    connect_timeout: 10s
    load_assignment: {cluster_name: next, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: TO, port_value: NEXT}}}}]}]}
    OUT
`

// tlsOf is a TLS context with the files of a directory.
func tlsOf(side, more, dir string) string {
	return fmt.Sprintf(`transport_socket: {name: tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.%sTlsContext, %s
      common_tls_context: {tls_params: {tls_minimum_protocol_version: TLSv1_2, tls_maximum_protocol_version: TLSv1_3}, tls_certificates: [{certificate_chain: {filename: %s/cert.pem}, private_key: {filename: %s/key.pem}}], validation_context: {trusted_ca: {filename: %s/cert.pem}}}}}`,
		side, more, dir, dir, dir)
}

// newStatic is a path through two Envoys that no control plane configures, with mTLS.
func newStatic(b *testing.B, buffers string) *travelled {
	b.Helper()
	l := hosttest.New(b)
	client, echo := l.Host("client", 2), l.Host("echo", 3)
	serveEcho(b, echo)
	keys := client.Dir("keys")
	selfSigned(b, keys)
	t := &travelled{from: client, user: undeclared, to: net.JoinHostPort(client.IP4(), "9080"), secured: true}
	for _, c := range []struct {
		host                                    *hosttest.Host
		at, port, to, next, in, out, forwarding string
	}{
		{client, client.IP4(), "9080", echo.IP4(), "9443", "", tlsOf("Upstream", "max_session_keys: 0,", keys), ""},
		{echo, echo.IP4(), "9443", "127.0.0.1", "8080", tlsOf("Downstream", "require_client_certificate: true, disable_stateless_session_resumption: true, disable_stateful_session_resumption: true,", keys), "", "forward_client_cert_details: APPEND_FORWARD\n          set_current_client_cert_details: {uri: true}"},
	} {
		text := strings.NewReplacer("AT", c.at, "PORT", c.port, "TO", c.to, "NEXT", c.next, "IN\n", c.in+"\n", "OUT\n", c.out+"\n", "FORWARD", c.forwarding, "BUFFERS", buffers).Replace(staticEnvoy)
		file := filepath.Join(c.host.Dir("envoy"), "envoy.yaml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			b.Fatal(err)
		}
		p := c.host.Start("static-"+c.host.Label, hosttest.ProxyUser, envoytest.Binary(b), "-c", file, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error")
		t.envoys = append(t.envoys, p.PID())
	}
	return t
}

// selfSigned writes a key, and a certificate that both sides have and trust.
func selfSigned(b *testing.B, dir string) {
	b.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/shop/sa/client"}}, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		b.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		b.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: cert}, "key.pem": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o644); err != nil {
			b.Fatal(err)
		}
	}
}
