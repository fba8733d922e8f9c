package meshtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// binaries are built once a test process.
type binaries struct{ fairlead, app string }

//nolint:gochecknoglobals // built once for all tests of a process
var (
	buildOnce sync.Once
	built     binaries
	errBuild  error
)

// Build builds the binary and the small service, once a test process.
func build(tb testing.TB, tags string) binaries {
	tb.Helper()
	buildOnce.Do(func() {
		root := envoytest.ModuleRoot(tb)
		dir := filepath.Join(root, ".tools", "test-bin", strconv.Itoa(os.Getpid()))
		built = binaries{filepath.Join(dir, "fairlead"), filepath.Join(dir, "app")}
		for out, pkg := range map[string]string{built.fairlead: "./cmd/fairlead", built.app: "./examples/quickstart/app"} {
			cmd := exec.Command("go", "build", "-tags", tags, "-o", out, pkg)
			cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0") // as it is shipped
			if b, err := cmd.CombinedOutput(); err != nil {
				errBuild = errors.Join(errBuild, fmt.Errorf("building %s: %w\n%s", pkg, err, b))
			}
		}
	})
	if errBuild != nil {
		tb.Fatal(errBuild)
	}
	return built
}

// Main runs the tests of a package and removes what [New] has built.
func Main(m *testing.M) int {
	code := m.Run()
	if built.fairlead != "" {
		_ = os.RemoveAll(filepath.Dir(built.fairlead))
	}
	return code
}

// Mesh is a control plane with its hosts, for one test.
type Mesh struct {
	tb     testing.TB
	bin    binaries
	prefix string // 127.X.Y.
	// Dir holds everything on disk; ConfigDir is what the server reads.
	Dir, ConfigDir string
	run            string
	subst          *strings.Replacer
	ports          map[string]int

	// Server is the control plane's process; nil before StartServer.
	Server *Process
}

// New makes the directories of a mesh and reads its manifests: the path of a
// directory, relative to the module's root, or empty for none. In manifests
// "127.0.0." before a number above 1 stands for the mesh's own block, and each
// application's port, given by name, is replaced by a free one.
func New(tb testing.TB, manifests string, applications map[string]int) *Mesh {
	tb.Helper()
	return newMesh(tb, "", manifests, applications)
}

// clockTag makes a binary whose wall clock [Mesh.SetClock] sets.
const clockTag = "fairlead_clocktest"

// NewWithClocks is New with a product whose clocks can be set, one by one. All meshes
// of a test process are of one kind.
func NewWithClocks(tb testing.TB, manifests string, applications map[string]int) *Mesh {
	tb.Helper()
	return newMesh(tb, clockTag, manifests, applications)
}

func newMesh(tb testing.TB, tags, manifests string, applications map[string]int) *Mesh {
	tb.Helper()
	envoytest.Binary(tb) // a skip comes before the work
	m := &Mesh{tb: tb, bin: build(tb, tags), Dir: tb.TempDir(), ports: map[string]int{}}
	m.prefix = envoytest.Loopback(tb, 16, 215)
	run := envoytest.ShortDir(tb)
	m.run = run
	tb.Cleanup(func() { _ = os.RemoveAll(run) })
	m.ConfigDir = filepath.Join(m.Dir, "mesh")
	if err := os.MkdirAll(m.ConfigDir, 0o750); err != nil {
		tb.Fatal(err)
	}
	var pairs []string
	for i := range 100 {
		pairs = append(pairs, fmt.Sprintf("127.0.0.%d", 110-i), fmt.Sprintf("%s%d", m.prefix, 110-i))
	}
	free := envoytest.FreePorts(tb, len(applications))
	i := 0
	for name, port := range applications {
		m.ports[name] = free[i]
		pairs = append(pairs, fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("127.0.0.1:%d", free[i]))
		i++
	}
	m.subst = strings.NewReplacer(pairs...)
	if manifests != "" {
		m.copyManifests(filepath.Join(envoytest.ModuleRoot(tb), manifests))
	}
	return m
}

func (m *Mesh) copyManifests(dir string) {
	m.tb.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		m.tb.Fatal(err)
	}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			m.tb.Fatal(err)
		}
		m.Write(e.Name(), string(content))
	}
}

// Binaries are the paths of the product and of the small service.
func (m *Mesh) Binaries() (fairlead, app string) { return m.bin.fairlead, m.bin.app }

// Address is the mesh's own address N.
func (m *Mesh) Address(n int) string { return m.prefix + strconv.Itoa(n) }

// Port is the port of an application.
func (m *Mesh) Port(application string) int { return m.ports[application] }

// Write puts a manifest into the mesh by atomic rename.
func (m *Mesh) Write(name, content string) {
	m.tb.Helper()
	tmp := filepath.Join(m.Dir, name+".new")
	if err := os.WriteFile(tmp, []byte(m.subst.Replace(content)), 0o600); err != nil {
		m.tb.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(m.ConfigDir, name)); err != nil {
		m.tb.Fatal(err)
	}
}

// Edit replaces text in a manifest.
func (m *Mesh) Edit(name, from, to string) {
	m.tb.Helper()
	content, err := os.ReadFile(filepath.Join(m.ConfigDir, name))
	if err != nil {
		m.tb.Fatal(err)
	}
	from = m.subst.Replace(from)
	if !strings.Contains(string(content), from) {
		m.tb.Fatalf("%s does not contain %q", name, from)
	}
	m.Write(name, strings.ReplaceAll(string(content), from, to))
}

// RunDir is the runtime directory of a process: "server", or a host's name.
func (m *Mesh) RunDir(name string) string { return filepath.Join(m.run, name) }

// StateDir is the state directory of a process.
func (m *Mesh) StateDir(name string) string { return filepath.Join(m.Dir, "state", name) }

// XDS is where the control plane serves xDS and signs.
func (m *Mesh) XDS() string { return net.JoinHostPort(m.Address(1), "15012") }

// StartServer starts the control plane and waits until it answers.
func (m *Mesh) StartServer(args ...string) *Process {
	m.tb.Helper()
	argv := append([]string{
		m.bin.fairlead, "server", "--config-dir", m.ConfigDir, "--state-dir", m.StateDir("server"),
		"--run-dir", m.RunDir("server"), "--xds-address", m.XDS(), "--http-address", net.JoinHostPort(m.Address(1), "15014"),
	}, args...)
	m.Server = m.Start("server", argv...)
	m.Server.Eventually(envoytest.Patience, func() error {
		_, err := m.CLI("host", "list", "--run-dir", m.RunDir("server"))
		return err
	})
	return m.Server
}

// Host is one host of a mesh.
type Host struct {
	Name string
	// Workload is its identity, NAMESPACE/SERVICEACCOUNT.
	Workload string
	// Address is the last number of its address.
	Address int
	// App are the arguments of its application; nil means that none runs. The
	// application listens on the port of the host's name.
	App []string
	// Agent are further arguments of the agent.
	Agent []string
	// Wrap is what runs the agent: a command line that the agent's is put behind.
	Wrap []string
}

// StartApp starts the application of a host.
func (m *Mesh) StartApp(h Host) *Process {
	m.tb.Helper()
	argv := []string{m.bin.app, "--name", h.Name, "--listen", fmt.Sprintf("127.0.0.1:%d", m.ports[h.Name])}
	for _, a := range h.App {
		argv = append(argv, m.subst.Replace(a))
	}
	p := m.Start(h.Name+"-app", argv...)
	p.Eventually(envoytest.Patience, func() error {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", m.ports[h.Name]))
		if err != nil {
			return err
		}
		return c.Close()
	})
	return p
}

// Token makes a join token for a host.
func (m *Mesh) Token(args ...string) string {
	m.tb.Helper()
	out, err := m.CLI(append([]string{"token", "create", "--run-dir", m.RunDir("server")}, args...)...)
	if err != nil {
		m.tb.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// StartAgent starts the agent of a host; with an empty token, one that has
// joined before.
func (m *Mesh) StartAgent(h Host, token string) *Process {
	m.tb.Helper()
	argv := []string{
		m.bin.fairlead, "agent", "--address", m.Address(h.Address), "--envoy", envoytest.Binary(m.tb),
		"--state-dir", m.StateDir(h.Name), "--run-dir", m.RunDir(h.Name),
	}
	if token != "" {
		path := filepath.Join(m.Dir, h.Name+".token")
		if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
			m.tb.Fatal(err)
		}
		argv = append(argv, "--token-file", path)
	}
	for _, a := range h.Agent {
		argv = append(argv, m.subst.Replace(a))
	}
	return m.Start(h.Name, append(slices.Clone(h.Wrap), argv...)...)
}

// GatewayAt is the address, by its number, of the host that StartGateway starts.
const GatewayAt = 13

// GatewayWorkload is the manifest of that host. Gateways select it by the label istio: ingressgateway.
const GatewayWorkload = `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: edge, namespace: edge}
spec: {address: 127.0.0.13, labels: {istio: ingressgateway}, serviceAccount: edge}
---
`

// StartGateway starts the host edge, a gateway of the namespace edge, with more flags for its agent.
func (m *Mesh) StartGateway(flags ...string) (Host, *Process) {
	m.tb.Helper()
	h := Host{Name: "edge", Workload: "edge/edge", Address: GatewayAt, Agent: append([]string{"--drain-time", "1s"}, flags...)}
	return h, m.StartAgent(h, m.Token("--host", h.Name, "--workload", h.Workload, "--type", "router"))
}

// StartHost starts the application, makes a token and starts the agent.
func (m *Mesh) StartHost(h Host) (app, agent *Process) {
	m.tb.Helper()
	if h.App != nil {
		app = m.StartApp(h)
	}
	return app, m.StartAgent(h, m.Token("--host", h.Name, "--workload", h.Workload))
}

// CLI runs the binary and gives its standard output; the error has what it
// printed to standard error.
func (m *Mesh) CLI(args ...string) (string, error) {
	cmd := exec.Command(m.bin.fairlead, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("fairlead %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out), err
}

// Proxies is `proxy-status -o json`, by host; that its exit code is 1, because
// something is wrong in the mesh, is no error.
func (m *Mesh) Proxies() (map[string]map[string]any, error) {
	out, err := m.CLI("proxy-status", "-o", "json", "--run-dir", m.RunDir("server"))
	exit, exited := errors.AsType[*exec.ExitError](err)
	if err != nil && (!exited || exit.ExitCode() != 1) {
		return nil, err
	}
	var status struct {
		Proxies []map[string]any `json:"proxies"`
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		return nil, fmt.Errorf("decoding proxy-status: %w\n%s", err, out)
	}
	by := map[string]map[string]any{}
	for _, p := range status.Proxies {
		by[fmt.Sprint(p["host"])] = p
	}
	return by, nil
}

// AwaitLive waits until the Envoys of the hosts have accepted everything.
func (m *Mesh) AwaitLive(hosts ...string) {
	m.tb.Helper()
	m.Server.Eventually(envoytest.Patience, func() error {
		by, err := m.Proxies()
		if err != nil {
			return err
		}
		for _, h := range hosts {
			if p := by[h]; p == nil || p["envoy"] != "live" || p["partial"] == true {
				return fmt.Errorf("host %s is not live: %v", h, p)
			}
		}
		return nil
	})
}
