package hosttest

import (
	"cmp"
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
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
	"github.com/fairlead/fairlead/internal/nethost"
)

// Users on all hosts. No such users have to exist on this machine.
const (
	ProxyUser = 21337 // of Envoy and the agent
	AppUser   = 22001 // of programs that are declared
	OtherUser = 23001 // of all others
)

// nets tells the networks of one test process apart.
var nets atomic.Int64 //nolint:gochecknoglobals // see above

// LAN is a mesh of hosts on a switch. The control plane has a host of its own.
type LAN struct {
	*meshtest.Mesh
	*nethost.Switch

	tb testing.TB
	// Control is the control plane's host.
	Control *Host
}

// serverNumber is the control plane's.
const serverNumber = 1

// New makes a switch and the control plane's host.
func New(tb testing.TB) *LAN {
	tb.Helper()
	return NewNumbered(tb, 100+int(nets.Add(1)))
}

// NewNumbered is New with the number of the network, for networks that have the same addresses.
func NewNumbered(tb testing.TB, net int) *LAN {
	tb.Helper()
	if _, err := exec.LookPath("setpriv"); err != nil {
		envoytest.Missing(tb, "setpriv is not installed: apt-get install util-linux")
	}
	l := &LAN{Switch: nethost.NewSwitch(tb, net), tb: tb}
	l.Mesh = meshtest.New(tb, "", nil)
	for _, dir := range []string{filepath.Dir(l.Dir), l.Dir, filepath.Dir(l.RunDir("server"))} {
		if err := os.Chmod(dir, 0o755); err != nil { // the hosts' users have to get to their own
			tb.Fatal(err)
		}
	}
	l.Control = l.Host("server", serverNumber)
	return l
}

// StartServer starts the control plane on its host, and waits until it answers.
func (l *LAN) StartServer(args ...string) {
	l.tb.Helper()
	fairlead, _ := l.Binaries()
	l.Server = l.Control.Start("server", 0, append([]string{
		fairlead, "server", "--config-dir", l.ConfigDir, "--state-dir", l.StateDir("server"), "--run-dir", l.RunDir("server"),
		"--xds-address", ":15012", "--advertise", l.IP4(serverNumber) + ":15012", "--http-address", "127.0.0.1:15014",
	}, args...)...)
	l.Server.Eventually(envoytest.Patience, func() error {
		_, err := l.CLI("host", "list", "--run-dir", l.RunDir("server"))
		return err
	})
}

// Host is one host.
type Host struct {
	*nethost.Host

	// Label is its name in the mesh, and Number that of its addresses.
	Label  string
	Number int
	// Type is the type of its proxies, sidecar or router; empty means sidecar.
	Type string
	// Envoy is the path of its Envoy; empty means the newest one.
	Envoy string
	// Agent and Keeper are its agent and its capture service, or nil.
	Agent, Keeper *meshtest.Process

	lan    *LAN
	joined bool
	// etc are files and directories that stand for those of this machine, by their path.
	etc map[string]string
}

// Host makes a host and plugs it in.
func (l *LAN) Host(label string, number int) *Host { return l.host(label, number, l.Plug) }

// FarHost is Host behind a wire that loses a share of what it sends, and delivers the rest late.
func (l *LAN) FarHost(label string, number int, delay time.Duration, loss float64) *Host {
	return l.host(label, number, func(h *nethost.Host) { l.PlugFar(h, delay, loss) })
}

func (l *LAN) host(label string, number int, plug func(*nethost.Host)) *Host {
	l.tb.Helper()
	h := &Host{Host: nethost.New(l.tb), Label: label, Number: number, lan: l, etc: map[string]string{}}
	plug(h.Host)
	l.Number(h.Host, number)
	h.Etc("hosts", "127.0.0.1 localhost\n::1 localhost\n")
	h.Etc("resolv.conf", "nameserver "+l.IP4(serverNumber)+"\noptions timeout:1 attempts:1\n")
	return h
}

// IP4 and IP6 are its addresses.
func (h *Host) IP4() string { return h.lan.IP4(h.Number) }

// IP6 is its other address.
func (h *Host) IP6() string { return h.lan.IP6(h.Number) }

// Dir is a directory of the host, for all its users to look into.
func (h *Host) Dir(name string) string {
	h.lan.tb.Helper()
	dir := filepath.Join(h.lan.Dir, h.Label, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.lan.tb.Fatal(err)
	}
	return dir
}

// Etc writes a file of the host's /etc, in place as DHCP clients do. Programs that run see it, if the
// host had such a file when they were started.
func (h *Host) Etc(name, content string) {
	h.lan.tb.Helper()
	path := filepath.Join(h.Dir("etc"), name)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		h.lan.tb.Fatal(err)
	}
	h.etc["/etc/"+name] = path
}

// Bind has a directory of the host stand for one of this machine, for programs that are started later.
func (h *Host) Bind(path, dir string) { h.etc[path] = dir }

// argv is a command line that runs as a user of the host, with the host's files.
func (h *Host) argv(uid int, argv []string) []string {
	var mounts strings.Builder
	for at, from := range h.etc {
		fmt.Fprintf(&mounts, "mount --bind %s %s && ", from, at)
	}
	out := []string{"ip", "netns", "exec", h.Name, "sh", "-c", mounts.String() + `exec "$@"`, "sh"}
	if uid != 0 {
		id := strconv.Itoa(uid)
		out = append(out, "setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--inh-caps=-all")
	}
	return append(out, argv...)
}

// Start starts a process on the host.
func (h *Host) Start(name string, uid int, argv ...string) *meshtest.Process {
	h.lan.tb.Helper()
	return h.lan.Start(name, h.argv(uid, argv)...)
}

// Run runs a program on the host. The error has what it printed to standard error.
func (h *Host) Run(uid int, argv ...string) (string, error) {
	full := h.argv(uid, argv)
	cmd := exec.CommandContext(h.lan.tb.Context(), full[0], full[1:]...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %s: %w: %s", h.Label, strings.Join(argv, " "), err, stderr.String())
	}
	return string(out), err
}

// Exec is Run as root, and has to succeed.
func (h *Host) Exec(argv ...string) string {
	h.lan.tb.Helper()
	out, err := h.Run(0, argv...)
	if err != nil {
		h.lan.tb.Fatal(err)
	}
	return out
}

// own makes a directory or file the proxy user's.
func (h *Host) own(paths ...string) {
	h.lan.tb.Helper()
	for _, path := range paths {
		if err := os.Chown(path, ProxyUser, ProxyUser); err != nil {
			h.lan.tb.Fatal(err)
		}
	}
}

// StartAgent starts the host's agent with its own user; the first time it joins. Workload is
// NAMESPACE/SERVICEACCOUNT, and address the host's in the mesh.
func (h *Host) StartAgent(workload, address string, args ...string) {
	h.lan.tb.Helper()
	fairlead, _ := h.lan.Binaries()
	argv := []string{
		fairlead, "agent", "--address", address, "--envoy", h.envoy(), "--state-dir", h.lan.StateDir(h.Label),
		"--run-dir", h.lan.RunDir(h.Label), "--drain-time", "1s", "--capture-socket", filepath.Join(h.CaptureRunDir(), "capture.sock"),
	}
	if !h.joined {
		token := filepath.Join(h.Dir("agent"), "token")
		kind := cmp.Or(h.Type, "sidecar")
		if err := os.WriteFile(token, []byte(h.lan.Token("--host", h.Label, "--workload", workload, "--type", kind)), 0o600); err != nil {
			h.lan.tb.Fatal(err)
		}
		for _, dir := range []string{h.lan.StateDir(h.Label), h.lan.RunDir(h.Label)} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				h.lan.tb.Fatal(err)
			}
		}
		if err := os.Chmod(filepath.Dir(h.lan.StateDir(h.Label)), 0o755); err != nil {
			h.lan.tb.Fatal(err)
		}
		h.own(h.lan.StateDir(h.Label), h.lan.RunDir(h.Label), token)
		argv = append(argv, "--token-file", token)
		h.joined = true
	}
	h.Agent = h.Start(h.Label, ProxyUser, append(argv, args...)...)
}

// Rejoin has the next start of the agent join with a new token and an empty state directory.
func (h *Host) Rejoin() {
	h.lan.tb.Helper()
	if err := os.RemoveAll(h.lan.StateDir(h.Label)); err != nil {
		h.lan.tb.Fatal(err)
	}
	h.joined = false
}

func (h *Host) envoy() string {
	h.lan.tb.Helper()
	if h.Envoy != "" {
		return h.Envoy
	}
	return envoytest.Binary(h.lan.tb)
}

// Check is what `fairlead agent check` says of the host, as JSON; its exit code is 1 if anything is broken.
func (h *Host) Check() string {
	h.lan.tb.Helper()
	fairlead, _ := h.lan.Binaries()
	out, err := h.Run(0, fairlead, "agent", "check", "--state-dir", h.lan.StateDir(h.Label), "--run-dir", h.lan.RunDir(h.Label), "--envoy", h.envoy(),
		"--capture", "--capture-dir", h.captureDir(), "--capture-socket", filepath.Join(h.CaptureRunDir(), "capture.sock"), "-o", "json")
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != 1) {
		h.lan.tb.Fatal(err)
	}
	return out
}

// CaptureRunDir is the runtime directory of the capture service.
func (h *Host) CaptureRunDir() string { return h.lan.RunDir(h.Label + "-capture") }

// Capture applies and confirms settings of packet capture, whose proxy user is added.
func (h *Host) Capture(settings string) {
	h.lan.tb.Helper()
	file, dir := filepath.Join(h.Dir("capture"), "capture.yaml"), h.captureDir()
	if err := os.WriteFile(file, fmt.Appendf(nil, "proxy-users: [%d]\n%s", ProxyUser, settings), 0o600); err != nil {
		h.lan.tb.Fatal(err)
	}
	fairlead, _ := h.lan.Binaries()
	h.Exec(fairlead, "capture", "apply", "--capture-file", file, "--capture-run-dir", h.CaptureRunDir(), "--capture-dir", dir, "--confirm-within", "1h")
	h.Exec(fairlead, "capture", "confirm", "--capture-dir", dir)
}

// Move gives the host another address, as DHCP may.
func (h *Host) Move(number int) {
	h.lan.tb.Helper()
	h.lan.Unnumber(h.Host, h.Number)
	h.Number = number
	h.lan.Number(h.Host, number)
}

// Down ends what runs for the mesh on the host, at once and without a word, and takes away what a
// reboot does: tables of nf_tables, addresses and routes of the loopback interface, and /run.
func (h *Host) Down() {
	h.lan.tb.Helper()
	for _, p := range []*meshtest.Process{h.Agent, h.Keeper} {
		if p != nil {
			p.Kill()
		}
	}
	if pid := h.lan.EnvoyPID(h.Label); pid != 0 {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			h.lan.tb.Fatal(err)
		}
	}
	h.NFT("", "flush", "ruleset")
	h.IP("link", "set", "lo", "down") // with it go its routes
	h.IP("link", "set", "lo", "up")
	h.IP("-6", "address", "flush", "dev", "lo", "to", "::6/128")
	for _, dir := range []string{h.lan.RunDir(h.Label), h.CaptureRunDir()} {
		if err := os.RemoveAll(dir); err != nil {
			h.lan.tb.Fatal(err)
		}
	}
	if err := os.MkdirAll(h.lan.RunDir(h.Label), 0o700); err != nil {
		h.lan.tb.Fatal(err)
	}
	h.own(h.lan.RunDir(h.Label))
}

func (h *Host) captureDir() string { return filepath.Join(h.Dir("capture"), "state") }

// StartKeeper starts the capture service, as its unit does.
func (h *Host) StartKeeper() {
	h.lan.tb.Helper()
	fairlead, _ := h.lan.Binaries()
	h.Keeper = h.Start(h.Label+"-capture", 0, "setpriv", "--regid", strconv.Itoa(ProxyUser), "--clear-groups", "--bounding-set=-all,+net_admin", "--inh-caps=-all",
		"--no-new-privs", fairlead, "capture", "run", "--capture-run-dir", h.CaptureRunDir(), "--capture-dir", h.captureDir())
	h.Keeper.Eventually(envoytest.Patience, func() error {
		out, err := h.Run(0, fairlead, "capture", "status", "--capture-run-dir", h.CaptureRunDir(), "--capture-dir", h.captureDir())
		if strings.Contains(out, "does not run") || !strings.Contains(out, "the service ") {
			return errors.Join(errors.New(out), err)
		}
		return nil
	})
}
