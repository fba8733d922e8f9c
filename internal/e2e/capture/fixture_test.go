package capture

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/fairlead/fairlead/agent/capture"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
	"github.com/fairlead/fairlead/internal/nethost"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

// Users of the tests. No such users have to exist.
const (
	proxyUser, appUser, otherUser = 21337, 22001, 23001
)

// Ports of the tests: of orders at its real and at its virtual address, and of web.
const (
	realPort, virtualPort, webPort = 9080, 80, 8080
	virtual                        = "240.240.0.9:80"
)

// nets tells the networks of the tests apart.
var nets atomic.Int64

// host is a host web with the capture service, and perhaps an agent with its Envoy; orders, which
// is no part of the mesh, and the control plane are on another one.
type host struct {
	*meshtest.Mesh
	*nethost.Host

	t      *testing.T
	peer   *nethost.Host
	net    int64
	kernel capture.Kernel
	agent  *meshtest.Process
}

// newHost starts the control plane; nothing runs on the host yet.
func newHost(t *testing.T) *host {
	t.Helper()
	if _, err := exec.LookPath("setpriv"); err != nil {
		envoytest.Missing(t, "setpriv is not installed: apt-get install util-linux")
	}
	t.Parallel()
	own, peer := nethost.New(t), nethost.New(t)
	h := &host{Mesh: meshtest.New(t, "", nil), Host: own, t: t, peer: peer, net: 100 + nets.Add(1), kernel: capture.Kernel{NetNS: own.FD}}
	nethost.Link(own, peer, int(h.net))
	own.Serve("web", webPort, false)
	peer.Serve("orders", realPort, false)
	for _, dir := range []string{filepath.Dir(h.Dir), h.Dir, filepath.Dir(h.RunDir("web"))} {
		if err := os.Chmod(dir, 0o755); err != nil { // the agent's user has to get to its own
			t.Fatal(err)
		}
	}
	h.Write("mesh.yaml", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.internal]
  addresses: [240.240.0.9]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: %d, name: tcp, protocol: TCP, targetPort: %d}]
  endpoints: [{address: %s}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %d, name: tcp, protocol: TCP}]
  workloadSelector: {labels: {app: web}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web, namespace: shop}
spec: {address: %s, labels: {app: web}, serviceAccount: web}
`, virtualPort, realPort, h.ip(2), webPort, h.ip(1)))
	fairlead, _ := h.Binaries()
	h.Server = h.in(peer, "server", fairlead, "server", "--config-dir", h.ConfigDir, "--state-dir", h.StateDir("server"), "--run-dir", h.RunDir("server"),
		"--xds-address", ":15012", "--advertise", h.ip(2)+":15012", "--http-address", "127.0.0.1:15014")
	h.Server.Eventually(envoytest.Patience, func() error {
		_, err := h.CLI("host", "list", "--run-dir", h.RunDir("server"))
		return err
	})
	return h
}

// ip is the address of the host (1) or of the other one (2).
func (h *host) ip(n int) string { return fmt.Sprintf("10.%d.0.%d", h.net, n) }

// real is the address of orders, and web that of the application.
func (h *host) real() string { return fmt.Sprintf("%s:%d", h.ip(2), realPort) }
func (h *host) web() string  { return fmt.Sprintf("%s:%d", h.ip(1), webPort) }

// in starts a process on a host.
func (h *host) in(on *nethost.Host, name string, argv ...string) *meshtest.Process {
	h.t.Helper()
	return h.Start(name, append([]string{"ip", "netns", "exec", on.Name}, argv...)...)
}

// dir is a directory of capture.
func (h *host) dir(name string) string { return filepath.Join(filepath.Dir(h.RunDir("web")), name) }

func (h *host) flags(args ...string) []string {
	return append(args, "--capture-dir", h.dir("state"))
}

// cli runs a command of capture on the host, and returns what it prints and its exit code.
func (h *host) cli(args ...string) (out string, code int) {
	h.t.Helper()
	fairlead, _ := h.Binaries()
	b, err := exec.CommandContext(h.t.Context(), "ip", append([]string{"netns", "exec", h.Name, fairlead, "capture"}, args...)...).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(b), exit.ExitCode()
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return string(b), 0
}

// status is the status of capture on the host.
func (h *host) status() (out string, code int) {
	h.t.Helper()
	return h.cli(h.flags("status", "--capture-run-dir", h.dir("capture"))...)
}

// service starts the capture service, with what its unit leaves to it.
func (h *host) service() *meshtest.Process {
	h.t.Helper()
	fairlead, _ := h.Binaries()
	p := h.in(h.Host, "capture", append([]string{
		"setpriv", "--regid", strconv.Itoa(proxyUser), "--clear-groups", "--bounding-set=-all,+net_admin", "--inh-caps=-all", "--no-new-privs", fairlead,
	}, h.flags("capture", "run", "--capture-run-dir", h.dir("capture"))...)...)
	p.Eventually(envoytest.Patience, func() error {
		if out, _ := h.status(); !strings.Contains(out, "the service ") || strings.Contains(out, "does not run") {
			return errors.New(out)
		}
		return nil
	})
	return p
}

// declare applies and confirms settings, with more of them of the workload.
func (h *host) declare(mode capture.Mode, more ...string) {
	h.t.Helper()
	path := h.dir("capture.yaml")
	content := fmt.Sprintf("mode: %s\noutbound: uid\nproxy-users: [%d]\nworkloads: [{name: web, users: [%d], ports: [%d]%s}]\n",
		mode, proxyUser, appUser, webPort, strings.Join(append([]string{""}, more...), ", "))
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		h.t.Fatal(err)
	}
	for _, args := range [][]string{
		h.flags("apply", "--capture-file", path, "--capture-run-dir", h.dir("capture"), "--confirm-within", "1h"),
		h.flags("confirm"),
	} {
		if out, code := h.cli(args...); code != 0 {
			h.t.Fatalf("%q: %d %s", args, code, out)
		}
	}
}

// startAgent starts the agent of web, with its own user, and waits until its Envoy serves.
func (h *host) startAgent(args ...string) {
	h.t.Helper()
	if h.agent == nil {
		token := h.dir("token")
		if err := os.WriteFile(token, []byte(h.Token("--host", "web", "--workload", "shop/web")), 0o600); err != nil {
			h.t.Fatal(err)
		}
		if err := os.Chmod(filepath.Dir(h.StateDir("web")), 0o755); err != nil { // the server's, too
			h.t.Fatal(err)
		}
		for _, dir := range []string{h.StateDir("web"), h.RunDir("web")} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				h.t.Fatal(err)
			}
		}
		for _, path := range []string{h.StateDir("web"), h.RunDir("web"), token} {
			if err := os.Chown(path, proxyUser, proxyUser); err != nil {
				h.t.Fatal(err)
			}
		}
		args = append(args, "--token-file", token)
	}
	fairlead, _ := h.Binaries()
	h.agent = h.in(h.Host, "web", append([]string{
		"setpriv", "--reuid", strconv.Itoa(proxyUser), "--regid", strconv.Itoa(proxyUser), "--clear-groups", "--inh-caps=-all", fairlead,
		"agent", "--address", h.ip(1), "--envoy", envoytest.Binary(h.t), "--state-dir", h.StateDir("web"), "--run-dir", h.RunDir("web"),
		"--capture", "--capture-socket", filepath.Join(h.dir("capture"), "capture.sock"), "--drain-time", "1s",
	}, args...)...)
	h.AwaitLive("web")
}

// killEnvoy is kill -9.
func (h *host) killEnvoy() {
	h.t.Helper()
	pid := h.EnvoyPID("web")
	if pid == 0 {
		h.t.Fatal("no Envoy runs")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		h.t.Fatal(err)
	}
}

// killAgent is kill -9; its Envoy goes on.
func (h *host) killAgent() {
	h.t.Helper()
	h.agent.Kill()
}

// want waits until three calls have these answers: of the application to orders by its virtual and
// its real address, and of another host to web.
func (h *host) want(toVirtual, toReal, inbound string) {
	h.t.Helper()
	envoytest.Eventually(h.t, envoytest.Patience, func() error {
		got := [3]string{h.Get(appUser, virtual), h.Get(appUser, h.real()), h.peer.Get(otherUser, h.web())}
		if strings.HasPrefix(got[0], "error: ") {
			got[0] = failed
		}
		if want := [3]string{toVirtual, toReal, inbound}; got != want {
			return fmt.Errorf("answers %q, want %q", got, want)
		}
		return nil
	})
}

// Answers of want. A virtual address fails where nothing is captured, and is refused while
// connections go directly.
const (
	orders, web, refused, failed = "orders", "web", "refused", "failed"
)
