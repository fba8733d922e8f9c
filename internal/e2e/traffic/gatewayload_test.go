package traffic

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/meshtest"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/codes"
)

// busyGateway has each kind of server whose connections an edit may close: HTTP, two of HTTPS at one
// port, and TCP. Listeners drain for one second.
const busyGateway = `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata:
  name: edge
  namespace: edge
  annotations: {proxy.istio.io/config: "{drainDuration: 1s}"}
spec: {address: 127.0.0.13, labels: {istio: ingressgateway}, serviceAccount: edge}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: public, namespace: edge}
spec:
  selector: {istio: ingressgateway}
  servers:
  - port: {number: 8080, name: http, protocol: HTTP}
    bind: 127.0.0.13
    hosts: [good.test]
  - port: {number: 9443, name: https-good, protocol: HTTPS}
    bind: 127.0.0.13
    hosts: [good.test]
    tls: {mode: SIMPLE, credentialName: good, minProtocolVersion: TLSV1_2}
  - port: {number: 9443, name: https-other, protocol: HTTPS}
    bind: 127.0.0.13
    hosts: [other.test]
    tls: {mode: SIMPLE, credentialName: other, maxProtocolVersion: TLSV1_3}
  - port: {number: 9000, name: tcp, protocol: TCP}
    bind: 127.0.0.13
    hosts: ["*"]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: public, namespace: shop}
spec:
  hosts: [good.test, other.test]
  gateways: [edge/public]
  http:
  - match: [{uri: {prefix: /status}}]
    directResponse: {status: 201}
  - route: [{destination: {host: echo.shop.internal, port: {number: 9080}}}]
  tcp:
  - route: [{destination: {host: echo.shop.internal, port: {number: 9000}}}]
`

// neighbour is another Gateway at the ports of the first one.
const neighbour = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: zneighbour, namespace: edge}
spec:
  selector: {istio: ingressgateway}
  servers:
  - port: {number: 9443, name: https-third, protocol: HTTPS}
    bind: 127.0.0.13
    hosts: [third.test]
    tls: {mode: SIMPLE, credentialName: third}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: third, namespace: edge}
spec:
  hosts: [third.test]
  gateways: [zneighbour]
  http: [{directResponse: {status: 200, body: {string: '{"name": "third"}'}}}]
`

// newBusyEdge starts a gateway with the mesh above, before an echo. MeshConfig has more extension providers if they are given.
func newBusyEdge(t *testing.T, providers ...string) *edgeHost {
	t.Helper()
	e := &edgeHost{pair: newPair(t)}
	e.keys = meshtest.NewKeyRing(t, filepath.Join(e.Dir, "credentials"))
	for _, name := range []string{"good", "other", "third"} {
		e.keys.Put(name, name+".test")
	}
	e.Write("gateway.yaml", busyGateway)
	config := filepath.Join(e.Dir, "mesh.yaml")
	providers = append(providers, "{name: text, envoyFileAccessLog: {path: "+e.accessLog()+", logFormat: {text: \""+edgeFormat+"\"}}}")
	text := "extensionProviders: [" + strings.Join(providers, ", ") + "]\ndefaultProviders: {metrics: [prometheus]}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e.StartServer("--mesh-config", config)
	for _, name := range []string{"http", "tcp"} {
		e.StartApp(meshtest.Host{Name: name, App: []string{"--protocol", name}})
	}
	e.StartHost(e.echoH)
	e.host = meshtest.Host{Name: "edge", Workload: "edge/edge", Address: 13, Agent: []string{"--drain-time", "1s", "--credentials-dir", e.keys.Dir, "--http-address", e.AgentHTTP(13)}}
	e.agent = e.StartAgent(e.host, e.Token("--host", "edge", "--workload", "edge/edge", "--type", "router"))
	e.AwaitLive("echo", "edge")
	for _, ask := range []func() error{
		func() error { return e.answers("good") }, func() error { return e.answers("other") }, func() error { return e.plain(8080, "good.test", "/") },
		func() error { _, err := askTCP(t.Context(), e.at(13, 9000), nil); return err },
	} {
		settle(t, ask)
	}
	return e
}

// edgeFormat is the format of lines of the gateway's access log; TCP has no path.
const edgeFormat = "%DOWNSTREAM_LOCAL_PORT% %REQ(:PATH)% %RESPONSE_CODE% %UPSTREAM_CLUSTER% %BYTES_RECEIVED%\\n"

// accessLog is where the gateway writes its access log, if a Telemetry says so.
func (e *edgeHost) accessLog() string { return filepath.Join(e.Dir, "access.log") }

// plain is nil if a plaintext port answers 200 for a host.
func (e *edgeHost) plain(port int, host, path string) error {
	_, err := meshtest.NewClient(e.t, host).Fresh().Get(e.t.Context(), "http://"+e.at(13, port)+path)
	return err
}

// plainSays is nil if the port of HTTP answers with a status that is not 200.
func (e *edgeHost) plainSays(path string, status int) error {
	if err := e.plain(8080, "good.test", path); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("status %d", status)) {
		return fmt.Errorf("%s: %w; want %d", path, err, status)
	}
	return nil
}

// reaches is nil if a server of TLS takes a client that speaks TLS up to a version.
func (e *edgeHost) reaches(name string, newest uint16) error {
	c := e.keys.TLS(name + ".test")
	c.MaxVersion = newest
	conn, err := (&tls.Dialer{Config: c}).DialContext(e.t.Context(), "tcp", e.at(13, 9443))
	if err != nil {
		return err
	}
	return conn.Close()
}

// refuses is the opposite of reaches.
func (e *edgeHost) refuses(name string, newest uint16) error {
	if e.reaches(name, newest) == nil {
		return fmt.Errorf("%s takes TLS %x", name, newest)
	}
	return nil
}

// told is nil if analyze names something of the mesh's files by a code.
func (e *edgeHost) told(code string) error {
	out, _ := e.CLI("analyze", e.ConfigDir) // exits with 1: something is wrong
	if !strings.Contains(out, "["+code+"]") {
		return fmt.Errorf("analyze does not have %s: %s", code, out)
	}
	return nil
}

// refusedBy is nil if analyze and the server name an error in a file by a code, so that the server has read it.
func (e *edgeHost) refusedBy(code string) error {
	out, err := e.Admin("server", "/v1/sources")
	if err == nil && !strings.Contains(out, code) {
		err = fmt.Errorf("the server does not have %s: %s", code, out)
	}
	return errors.Join(err, e.told(code))
}

// generation is that of the server's latest snapshot.
func (e *edgeHost) generation() (uint64, error) {
	var sources struct{ Registry registry.Status }
	out, err := e.Admin("server", "/v1/sources")
	if err == nil {
		err = json.Unmarshal([]byte(out), &sources)
	}
	return sources.Registry.Generation, err
}

// taken is a step that has happened if the server has made a snapshot since, and Envoy has accepted what it has of it.
// It is for edits that connections do not show.
func (e *edgeHost) taken(name string, do func()) edgeStep {
	var before uint64
	return edgeStep{name, func() {
		var err error
		if before, err = e.generation(); err != nil {
			e.t.Fatal(err)
		}
		do()
	}, func() error {
		now, err := e.generation()
		if err != nil || now <= before {
			return fmt.Errorf("generation %d, was %d: %w", now, before, err)
		}
		by, err := e.Proxies()
		if p := by["edge"]; err == nil && (p == nil || p["envoy"] != "live" || p["partial"] == true) {
			err = fmt.Errorf("the gateway is not live: %v", p)
		}
		return err
	}}
}

// edgeStep is something that happens to a busy gateway, and when it has happened.
type edgeStep struct {
	name string
	do   func()
	held func() error
}

// edits are edits of the Gateway that the load goes through.
func (e *edgeHost) edits() []edgeStep {
	edit := func(from, to string) func() { return func() { e.Edit("gateway.yaml", from, to) } }
	return []edgeStep{
		{"a host is added", func() {
			e.Edit("gateway.yaml", "hosts: [good.test]", "hosts: [good.test, new.test]")
			e.Edit("gateway.yaml", "hosts: [good.test, other.test]", "hosts: [good.test, other.test, new.test]")
		}, func() error { return e.plain(8080, "new.test", "/") }},
		{"a server with another port is added", edit("  - port: {number: 9000,", "  - port: {number: 8081, name: more, protocol: HTTP}\n    bind: 127.0.0.13\n    hosts: [new.test]\n  - port: {number: 9000,"), func() error { return e.plain(8081, "new.test", "/") }},
		{"a route changes", edit("status: 201", "status: 202"), func() error { return e.plainSays("/status", 202) }},
		{"the TLS versions of another server change", edit("maxProtocolVersion: TLSV1_3", "minProtocolVersion: TLSV1_3"), func() error { return e.refuses("other", tls.VersionTLS12) }},
		{"the TLS versions of this server change", edit("minProtocolVersion: TLSV1_2", "minProtocolVersion: TLSV1_3"), func() error { return e.refuses("good", tls.VersionTLS12) }},
		{"the port of this server is renamed", edit("name: https-good", "name: https-renamed"), func() error { return e.dumps("https.9443.https-renamed.public.edge") }},
		e.taken("the HTTP port is renamed", edit("name: http,", "name: http-renamed,")), // Envoy has the name nowhere
	}
}

// neighbours are what may befall another Gateway at the same port.
func (e *edgeHost) neighbours() []edgeStep {
	write := func(from, to string) func() {
		return func() { e.Write("neighbour.yaml", strings.Replace(neighbour, from, to, 1)) }
	}
	plainAt := func(port, protocol string) func() {
		return func() {
			e.Write("neighbour.yaml", strings.NewReplacer("9443", port, "protocol: HTTPS", "protocol: "+protocol, "    tls: {mode: SIMPLE, credentialName: third}\n", "").Replace(neighbour))
		}
	}
	third := func() error { return e.answers("third") }
	gone := func() error {
		if third() == nil {
			return errors.New("the neighbour still answers")
		}
		return nil
	}
	other := e.taken("its protocol is another one", plainAt("8080", "TCP"))
	accepted := other.held
	other.held = func() error { return errors.Join(accepted(), e.told(codes.ServerLeftOut), gone()) }
	return []edgeStep{
		{"a neighbour comes", write("", ""), third},
		{"it is no YAML", func() { e.Write("neighbour.yaml", "kind: [") }, func() error { return errors.Join(e.refusedBy(codes.Syntax), third()) }},
		{"it is plaintext at a port of TLS", plainAt("9443", "HTTP"), gone},
		other,
		{"its credential is missing", write("credentialName: third", "credentialName: absent"), gone},
		{"it is mended", write("", ""), third},
		{"it has a name that Envoy does not take", write("hosts: [third.test]", `hosts: ["*-a.third.test"]`), func() error { return e.refusedBy(codes.Webhook) }},
		{"its files are missing", write("credentialName: third", "serverCertificate: missing.crt, privateKey: missing.key"), gone},
		{"it is mended again", write("", ""), third},
		{"it is deleted", func() { e.Write("neighbour.yaml", "# none\n") }, gone},
	}
}

// deaths are processes that are killed and come back.
func (e *edgeHost) deaths() []edgeStep {
	good := func() error { return e.answers("good") }
	killAgent, killServer := func() { e.agent.Kill() }, func() { e.Server.Kill() }
	startAgent := func() { e.agent = e.StartAgent(e.host, "") }
	startServer := func() { e.StartServer("--mesh-config", filepath.Join(e.Dir, "mesh.yaml")) }
	changed := func(from, to int) edgeStep {
		return edgeStep{
			fmt.Sprintf("an edit after that: %d", to), func() { e.Edit("gateway.yaml", fmt.Sprintf("status: %d", from), fmt.Sprintf("status: %d", to)) },
			func() error { return e.plainSays("/status", to) },
		}
	}
	return []edgeStep{
		{"the agent is killed", killAgent, good},
		{"the agent is back", startAgent, good},
		changed(202, 203),
		{"the server is killed", killServer, good},
		{"the server is back", startServer, good},
		changed(203, 204),
		{"both are killed", func() { killAgent(); killServer() }, good},
		{"the agent is back first", startAgent, good},
		{"the server follows", startServer, good},
		changed(204, 205),
	}
}

// dumps is nil if Envoy has something in its configuration.
func (e *edgeHost) dumps(text string) error {
	dump, err := e.EnvoyAdmin("edge", "/config_dump")
	if err == nil && !strings.Contains(dump, text) {
		err = fmt.Errorf("Envoy has no %s", text)
	}
	return err
}

// TestGatewayUnderLoad: 500 requests a second, by connections that are kept and by new ones, with HTTP/1.1
// and HTTP/2, lose none while the certificate rotates, the Gateway is edited, another Gateway at the port
// breaks, and the agent and the control plane are killed.
func TestGatewayUnderLoad(t *testing.T) {
	t.Parallel()
	e := newBusyEdge(t)
	secure, plain := "https://"+e.at(13, 9443)+"/", "http://"+e.at(13, 8080)+"/"
	h1, h2 := e.keys.HTTPS("good.test"), e.keys.HTTP2("good.test")
	loads := map[string]*meshtest.Load{
		"HTTPS, kept":           h1.StartLoad(t, secure, 140),
		"HTTPS, new":            h1.Fresh().StartLoad(t, secure, 25),
		"HTTPS, HTTP/2, kept":   h2.StartLoad(t, secure, 140),
		"HTTPS, HTTP/2, new":    h2.Fresh().StartLoad(t, secure, 25),
		"HTTPS, another server": e.keys.HTTPS("other.test").StartLoad(t, secure, 50),
		"HTTP, kept":            meshtest.NewClient(t, "good.test").StartLoad(t, plain, 95),
		"HTTP, new":             meshtest.NewClient(t, "good.test").Fresh().StartLoad(t, plain, 25),
	}
	envoy := e.EnvoyPID("edge")
	step := func(s edgeStep) {
		t.Helper()
		s.do()
		settle(t, func() error {
			if err := s.held(); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			return nil
		})
		for name, l := range loads {
			l.Wait(t, 5)
			if r := l.Now(); r.Failed > 0 {
				t.Fatalf("%s: %s: %d of %d requests failed: %v", s.name, name, r.Failed, r.Good+r.Failed, r.Errors)
			}
		}
	}
	serial := e.keys.Put("good", "good.test")
	step(edgeStep{"the certificate rotates", func() { e.presents("good", serial) }, func() error { return nil }})
	for _, list := range [][]edgeStep{e.edits(), e.neighbours(), e.deaths()} {
		for _, s := range list {
			step(s)
		}
	}
	sum := 0
	for name, l := range loads {
		r := l.Stop()
		sum += r.Good
		if r.Failed > 0 {
			t.Errorf("%s: %d of %d requests failed: %v", name, r.Failed, r.Good+r.Failed, r.Errors)
		}
	}
	t.Logf("%d requests", sum)
	e.AwaitLive("edge") // and has rejected nothing
	if now := e.EnvoyPID("edge"); now != envoy {
		t.Errorf("Envoy's process is %d; it was %d", now, envoy)
	}
}
