package programs

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/hosttest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

// mesh are the services of api and of data, and web, which calls them. What data has travels by IPv6.
const mesh = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: api, namespace: lab}
spec:
  hosts: [api.lab]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 9090, name: grpc, protocol: GRPC}]
  workloadSelector: {labels: {app: api}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cache, namespace: lab}
spec:
  hosts: [cache.lab]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 6379, name: redis, protocol: TCP}]
  workloadSelector: {labels: {app: data}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: mail, namespace: lab}
spec:
  hosts: [mail.lab]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 25, name: smtp, protocol: TCP, targetPort: 2525}]
  workloadSelector: {labels: {app: data}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web, namespace: lab}
spec: {address: WEB, labels: {app: web}, serviceAccount: web}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: api, namespace: lab}
spec: {address: API, ports: {http: 8080, grpc: 9090}, labels: {app: api}, serviceAccount: api}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: data, namespace: lab}
spec: {address: "DATA", labels: {app: data}, serviceAccount: data}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: lab}
spec: {mtls: {mode: STRICT}}
`

// allow has only one service account call the workloads of the mesh.
const allow = `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: callers, namespace: lab}
spec:
  action: ALLOW
  rules: [{from: [{source: {principals: [cluster.local/ns/lab/sa/%s]}}]}]
`

// hosts are a mesh of three hosts.
type hosts struct {
	*hosttest.LAN

	t              *testing.T
	web, api, data *hosttest.Host
	webAt          string // web's address in the mesh
	accessLog      string
	webApp         *meshtest.Process
	nameserver     *meshtest.Process
	resolvers      map[string]*meshtest.Process
}

// start starts a mesh of three hosts, with their programs. web makes its host.
func start(t *testing.T, web func(l *hosttest.LAN, label string, number int) *hosttest.Host) *hosts {
	t.Helper()
	l := hosttest.New(t)
	h := &hosts{LAN: l, t: t, web: web(l, "web", 2), api: l.Host("api", 3), data: l.Host("data", 4), resolvers: map[string]*meshtest.Process{}}
	h.webAt = h.web.IP4()
	h.writeMesh()
	h.accessLog = filepath.Join(h.data.Dir("log"), "access.log")
	if err := os.Chmod(filepath.Dir(h.accessLog), 0o777); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(h.Dir, "meshconfig.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "accessLogFile: %s\naccessLogFormat: \"%%DOWNSTREAM_PEER_URI_SAN%% to %%UPSTREAM_CLUSTER%%\\n\"\n", h.accessLog), 0o600); err != nil {
		t.Fatal(err)
	}
	h.StartServer("--mesh-config", config)
	h.startNameserver()
	h.programs()
	for _, c := range []struct {
		host                       *hosttest.Host
		account, address, settings string
	}{
		{h.web, "lab/web", h.web.IP4(), "workloads: [{name: web, users: [USER]}]\n"},
		{h.api, "lab/api", h.api.IP4(), "workloads: [{name: api, users: [USER], ports: [8080, 9090]}]\n"},
		{h.data, "lab/data", h.data.IP6(), "workloads: [{name: data, users: [USER], ports: [6379, 2525]}]\n"},
	} {
		conf := filepath.Join(c.host.Dir("etc"), "upstream.conf")
		if err := os.WriteFile(conf, []byte("nameserver "+h.Control.IP4()+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		c.host.Capture(strings.ReplaceAll(c.settings, "USER", strconv.Itoa(hosttest.AppUser)))
		h.startAgent(c.host, c.account, c.address)
		h.startResolver(c.host)
	}
	h.AwaitLive("web", "api", "data")
	envoytest.Eventually(t, envoytest.Patience, func() error { // the last host is in everybody's table
		_, err := h.web.Run(hosttest.AppUser, "getent", "ahosts", "mail.lab")
		return err
	})
	return h
}

func (h *hosts) writeMesh() {
	h.t.Helper()
	h.Write("mesh.yaml", strings.NewReplacer("WEB", h.webAt, "API", h.api.IP4(), "DATA", h.data.IP6()).Replace(mesh))
}

func (h *hosts) startAgent(at *hosttest.Host, account, address string) {
	h.t.Helper()
	at.StartAgent(account, address, "--capture", "--dns", "--dns-resolv-conf", filepath.Join(at.Dir("etc"), "upstream.conf"))
}

// programs starts what api and data serve.
func (h *hosts) programs() {
	h.t.Helper()
	_, app := h.Binaries()
	h.api.Start("api-http", hosttest.AppUser, app, "--name", "api-http", "--listen", ":8080")
	h.api.Start("api-grpc", hosttest.AppUser, app, "--name", "api-grpc", "--protocol", "grpc", "--listen", ":9090")
	h.data.Start("redis", hosttest.AppUser, tool(h.t, "redis-7.0.15", "redis-server"), "--bind", "* -::*", "--protected-mode", "no", "--save", "", "--dir", "/tmp")
	h.mail()
	h.startWebApp()
}

// startWebApp starts a program with a gRPC client, which its own page uses.
func (h *hosts) startWebApp() {
	h.t.Helper()
	_, app := h.Binaries()
	h.webApp = h.web.Start("web-app", hosttest.AppUser, app, "--name", "web", "--listen", "127.0.0.1:7000", "--next", "grpc://api.lab:9090", "--next-host", "api.lab")
}

// mail serves a few words of SMTP, the banner first.
func (h *hosts) mail() {
	h.t.Helper()
	var l net.Listener
	var err error
	h.data.As(hosttest.AppUser, func() { l, err = (&net.ListenConfig{}).Listen(h.t.Context(), "tcp", ":2525") })
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = fmt.Fprint(c, "220 mail.lab ESMTP\r\n")
				for in := bufio.NewScanner(c); in.Scan(); {
					switch word, _, _ := strings.Cut(in.Text(), " "); strings.ToUpper(word) {
					case "QUIT":
						_, _ = fmt.Fprint(c, "221 bye\r\n")
						return
					case "HELP":
						_, _ = fmt.Fprint(c, "214 this is mail.lab\r\n")
					default:
						_, _ = fmt.Fprint(c, "250 mail.lab\r\n")
					}
				}
			}()
		}
	}()
}

// startNameserver starts the nameserver of the network, a dnsmasq on the control plane's host.
func (h *hosts) startNameserver() {
	h.t.Helper()
	h.nameserver = h.Control.Start("nameserver", 0, tool(h.t, "dnsmasq-2.90", "dnsmasq"), "--keep-in-foreground", "--log-facility=-", "--conf-file=/dev/null", "--no-resolv", "--no-hosts",
		"--address=/outside.example/"+h.Control.IP4(), "--user=", "--pid-file=", "--bind-interfaces", "--listen-address="+h.Control.IP4())
}

// startResolver starts a dnsmasq that has the names of the mesh from the agent, by the drop-in of docs/dns.md, and
// all others from the network's nameserver. The host's resolv.conf names it.
func (h *hosts) startResolver(at *hosttest.Host) {
	h.t.Helper()
	conf := filepath.Join(at.Dir("etc"), "dnsmasq.conf")
	text := dropIn(h.t, "dnsmasq") + "no-resolv\nno-hosts\nserver=" + h.Control.IP4() + "\nlisten-address=127.0.0.1\nbind-interfaces\ncache-size=0\npid-file=\nuser=\n"
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
	at.Etc("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:2\n")
	h.resolvers[at.Label] = at.Start(at.Label+"-dnsmasq", 0, tool(h.t, "dnsmasq-2.90", "dnsmasq"), "--keep-in-foreground", "--log-facility=-", "--conf-file="+conf)
}

// dropIn is the first example of a section of docs/dns.md.
func dropIn(t *testing.T, section string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(t), "docs", "dns.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)\n## " + section + "\n.*?```\n(.*?)```\n").FindSubmatch(page)
	if m == nil {
		t.Fatalf("docs/dns.md has no example for %s", section)
	}
	return string(m[1])
}

// tool is a program of the project's tools, or of the system.
func tool(t *testing.T, dir, name string) string {
	t.Helper()
	own := filepath.Join(envoytest.ModuleRoot(t), ".tools", dir, name)
	if _, err := os.Stat(own); err == nil {
		return own
	}
	path, err := exec.LookPath(name)
	if err != nil {
		envoytest.Missing(t, "%s is not installed: make tools", name)
	}
	return path
}
