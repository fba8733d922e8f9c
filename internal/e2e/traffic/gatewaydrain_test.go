package traffic

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// keptConn is one connection to a gateway that is used now and then.
type keptConn struct {
	name string
	// again asks by the connection, and reports whether it was a new one.
	again func() (bool, error)
}

// keptHTTP is one of HTTP; of TLS if there are settings.
func (e *edgeHost) keptHTTP(name, host string, port int, conf *tls.Config) keptConn {
	var dials atomic.Int64
	tr := &http.Transport{
		MaxConnsPerHost: 1, TLSClientConfig: conf, ForceAttemptHTTP2: strings.HasSuffix(name, "HTTP/2"),
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			var d net.Dialer
			return d.DialContext(ctx, network, address)
		},
	}
	c, url := meshtest.NewClientOver(e.t, host, tr), "http://"+e.at(13, port)+"/"
	if conf != nil {
		url = strings.Replace(url, "http:", "https:", 1)
	}
	return keptConn{name, func() (bool, error) {
		before := dials.Load()
		_, err := c.Get(e.t.Context(), url)
		return dials.Load() != before, err
	}}
}

// keptTCP is one of TCP.
func (e *edgeHost) keptTCP() keptConn {
	var c net.Conn
	var r *bufio.Reader
	return keptConn{"TCP", func() (bool, error) {
		if c != nil && say(c, r, "hello") == nil {
			return false, nil
		}
		var err error
		if c, err = dial(e.t.Context(), e.at(13, 9000), nil); err != nil {
			return true, err
		}
		e.t.Cleanup(func() { _ = c.Close() })
		r = bufio.NewReader(c)
		return true, say(c, r, "hello")
	}}
}

// drained waits until Envoy has accepted all of a change that it has a part of, and has no listener and no
// filter chain left that drains or warms.
func (e *edgeHost) drained() {
	e.t.Helper()
	envoytest.Eventually(e.t, envoytest.Patience, func() error {
		if by, err := e.Proxies(); err != nil || by["edge"]["synced"] != true {
			return fmt.Errorf("not synced: %v, %w", by["edge"], err)
		}
		text, err := e.EnvoyAdmin("edge", "/stats?filter=^listener_manager.total_.*(draining|warming)$")
		if err != nil {
			return err
		}
		for line := range strings.Lines(text) {
			if !strings.HasSuffix(strings.TrimSpace(line), ": 0") {
				return errors.New(strings.TrimSpace(line))
			}
		}
		return nil
	})
}

// TestEditsThatCloseConnections: the table of the docs. What an edit of a Gateway closes are the connections
// of the filter chains that it changes, when these have drained. All others live on.
func TestEditsThatCloseConnections(t *testing.T) {
	t.Parallel()
	e := newBusyEdge(t)
	list := []keptConn{
		e.keptHTTP("HTTP", "good.test", 8080, nil), e.keptHTTP("HTTPS", "good.test", 9443, e.keys.TLS("good.test")),
		e.keptHTTP("HTTPS, HTTP/2", "good.test", 9443, e.keys.TLS("good.test")), e.keptHTTP("other HTTPS", "other.test", 9443, e.keys.TLS("other.test")), e.keptTCP(),
	}
	probe := func() (fresh []string) {
		for _, c := range list {
			again, err := c.again()
			switch {
			case err != nil:
				fresh = append(fresh, c.name+" fails")
			case again:
				fresh = append(fresh, c.name)
			}
		}
		return fresh
	}
	probe()
	if fresh := probe(); fresh != nil {
		t.Fatalf("%q are not kept without any edit", fresh)
	}
	for _, s := range e.closing() {
		s.do()
		settle(t, func() error {
			if err := s.held(); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			return nil
		})
		e.drained()
		got := probe()
		slices.Sort(got)
		t.Logf("%s: %q", s.name, got)
		if d := cmp.Diff(s.closes, got); d != "" {
			t.Errorf("%s: closed connections (-want +got):\n%s", s.name, d)
		}
	}
}

// closingStep is an edit, and the connections that it closes.
type closingStep struct {
	edgeStep
	closes []string
}

func (e *edgeHost) closing() []closingStep {
	edit := func(from, to string) func() { return func() { e.Edit("gateway.yaml", from, to) } }
	https := []string{"HTTPS", "HTTPS, HTTP/2"}
	all := []string{"HTTP", "HTTPS", "HTTPS, HTTP/2", "TCP", "other HTTPS"}
	good := func() error { return e.answers("good") }
	return []closingStep{
		{edgeStep{"the certificate rotates", func() { e.presents("good", e.keys.Put("good", "good.test")) }, good}, nil},
		{edgeStep{"a route changes", edit("status: 201", "status: 202"), func() error { return e.plainSays("/status", 202) }}, nil},
		{edgeStep{"a host of HTTP is added", func() {
			e.Edit("gateway.yaml", "hosts: [good.test, other.test]", "hosts: [good.test, other.test, new.test]")
			e.Edit("gateway.yaml", "protocol: HTTP}\n    bind: 127.0.0.13\n    hosts: [good.test]", "protocol: HTTP}\n    bind: 127.0.0.13\n    hosts: [good.test, new.test]")
		}, func() error { return e.plain(8080, "new.test", "/") }}, nil},
		{edgeStep{"a server at another port is added", edit("  - port: {number: 9000,", "  - port: {number: 8081, name: more, protocol: HTTP}\n    bind: 127.0.0.13\n    hosts: [new.test]\n  - port: {number: 9000,"), func() error { return e.plain(8081, "new.test", "/") }}, nil},
		{edgeStep{"a server of TLS at the port is added", func() { e.Write("neighbour.yaml", neighbour) }, func() error { return e.answers("third") }}, nil},
		{edgeStep{"it is removed", func() { e.Write("neighbour.yaml", "# none\n") }, func() error {
			if e.answers("third") == nil {
				return errors.New("it still answers")
			}
			return nil
		}}, nil},
		{edgeStep{"a host of HTTPS is added", edit("protocol: HTTPS}\n    bind: 127.0.0.13\n    hosts: [good.test]", "protocol: HTTPS}\n    bind: 127.0.0.13\n    hosts: [good.test, third.test]"), func() error { return e.reachesAs("good", "third") }}, https},
		{edgeStep{"TLS versions change", edit("minProtocolVersion: TLSV1_2", "minProtocolVersion: TLSV1_3"), func() error { return e.refuses("good", tls.VersionTLS12) }}, https},
		{edgeStep{"a port of HTTPS is renamed", edit("name: https-good", "name: https-renamed"), func() error { return e.dumps("https.9443.https-renamed.public.edge") }}, https},
		{edgeStep{"another credential", func() {
			serial := e.keys.Put("next", "good.test")
			e.Edit("gateway.yaml", "credentialName: good", "credentialName: next")
			e.presents("good", serial)
		}, good}, https},
		{edgeStep{"httpsRedirect", edit("protocol: HTTP}\n    bind: 127.0.0.13\n    hosts: [new.test]", "protocol: HTTP}\n    bind: 127.0.0.13\n    hosts: [new.test]\n    tls: {httpsRedirect: true}"), func() error {
			if err := e.plain(8081, "new.test", "/"); err == nil || !strings.Contains(err.Error(), "https://new.test/") {
				return fmt.Errorf("no redirect: %w", err)
			}
			return nil
		}}, nil},
		{edgeStep{"a policy comes", func() { e.Write("policy.yaml", edgePolicy) }, func() error { return e.plainSays("/private", 403) }}, all},
		{edgeStep{"a policy changes", func() { e.Edit("policy.yaml", "/private", "/secret") }, func() error { return e.plainSays("/secret", 403) }}, []string{"HTTP", "HTTPS", "HTTPS, HTTP/2", "other HTTPS"}},
		{edgeStep{"a route of TCP changes", func() {
			e.Write("lines.yaml", strings.Replace(edgeLines, "TCPPORT", strconv.Itoa(e.Port("tcp")), 1))
			e.Edit("gateway.yaml", "  - route: [{destination: {host: echo.shop.internal, port: {number: 9000}}}]", "  - route: [{destination: {host: lines.test, port: {number: 9000}}}]")
		}, func() error { return e.dumps("outbound|9000||lines.test") }}, []string{"TCP"}},
		{edgeStep{"access logs", func() { e.Write("telemetry.yaml", edgeTelemetry) }, func() error { return e.dumps(e.accessLog()) }}, all},
		{edgeStep{"a server is removed", edit("  - port: {number: 8080, name: http, protocol: HTTP}", "  - port: {number: 8082, name: http, protocol: HTTP}"), func() error { return e.plain(8082, "good.test", "/") }}, []string{"HTTP fails"}},
	}
}

const edgeLines = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: lines, namespace: shop}
spec:
  hosts: [lines.test]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 9000, name: tcp, protocol: TCP}]
  endpoints: [{address: 127.0.0.1, ports: {tcp: TCPPORT}}]
`

const edgeTelemetry = `
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: edge, namespace: edge}
spec:
  selector: {matchLabels: {istio: ingressgateway}}
  accessLogging: [{providers: [{name: text}]}]
`

const edgePolicy = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: private, namespace: edge}
spec:
  selector: {matchLabels: {istio: ingressgateway}}
  action: DENY
  rules: [{to: [{operation: {paths: [/private], ports: ["8080"]}}]}]
`

// reachesAs is nil if a server presents the certificate of one name for another.
func (e *edgeHost) reachesAs(cert, name string) error {
	c := e.keys.TLS(name + ".test")
	c.InsecureSkipVerify = true
	conn, err := (&tls.Dialer{Config: c}).DialContext(e.t.Context(), "tcp", e.at(13, 9443))
	if err != nil {
		return err
	}
	defer conn.Close()
	own, ok := conn.(*tls.Conn)
	if !ok {
		return errors.New("not TLS")
	}
	return own.ConnectionState().PeerCertificates[0].VerifyHostname(cert + ".test")
}
