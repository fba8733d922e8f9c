package capture

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPortsOfSSHDAreFound: in its configuration, in that of systemd's sockets, among listening
// processes, and of the session that the person works in. 22 is always among them.
func TestPortsOfSSHDAreFound(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for path, content := range map[string]string{
		"etc/ssh/sshd_config":                                "# Port 1\nPort 2201\nport 2202\nListenAddress 10.0.0.1:2203\nListenAddress [::1]:2204\nListenAddress 10.0.0.1\nPortX 9\n",
		"etc/ssh/sshd_config.d/extra.conf":                   "Port=2205\nListenAddress host.lab:2206\n",
		"etc/systemd/system/ssh.socket.d/port.conf":          "[Socket]\nListenStream=\nListenStream=2207\n",
		"run/systemd/generator/ssh.socket.d/addresses.conf":  "ListenStream=0.0.0.0:2208\nListenStream=[::]:2209\n",
		"usr/lib/systemd/system/sshd.socket":                 "ListenStream=2210\nListenStream=/run/ssh.sock\nListenStream=70000\n",
		"etc/ssh/ssh_config":                                 "Port 2299\n", // of the client
		"etc/systemd/system/other.socket":                    "ListenStream=2298\n",
		"etc/systemd/system/sshd.socket.d/" + "ignored.text": "ListenStream=2297\n",
	} {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	got := configuredSSHPorts(root)
	slices.Sort(got)
	if want := []uint16{2201, 2202, 2203, 2204, 2205, 2206, 2207, 2208, 2209, 2210}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	facts := FindFacts("10.0.0.9 50000 10.0.0.1 2211")
	if !slices.Contains(facts.SSHPorts, 2211) || !slices.Contains(facts.SSHPorts, 22) || !slices.IsSorted(facts.SSHPorts) {
		t.Errorf("%+v", facts)
	}
	for _, connection := range []string{"", "a b c d", "10.0.0.9 50000 10.0.0.1 0", "2212"} {
		if facts := FindFacts(connection); !slices.Contains(facts.SSHPorts, 22) || slices.Contains(facts.SSHPorts, 0) || slices.Contains(facts.SSHPorts, 2212) {
			t.Errorf("%q: %+v", connection, facts)
		}
	}
}

// asSSHD is set in the process that listens as sshd.
const asSSHD = "FAIRLEAD_TEST_SSHD"

// TestListeningSSHDIsFound: a process called sshd listens at a port that no file names. It looks
// for itself: a thread of this process may be in another network namespace.
func TestListeningSSHDIsFound(t *testing.T) {
	t.Parallel()
	if os.Getenv(asSSHD) != "" {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		at, err := netip.ParseAddrPort(l.Addr().String())
		if facts := FindFacts(""); err != nil || !slices.Contains(facts.SSHPorts, at.Port()) {
			t.Errorf("sshd listens at %s, and found was %+v, %v", at, facts, err)
		}
		return
	}
	own, err := os.Executable()
	path := filepath.Join(t.TempDir(), "sshd")
	if err == nil {
		err = os.Symlink(own, path) // the process has the name of the link
	}
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), path, "-test.run=^TestListeningSSHDIsFound$", "-test.v")
	child.Env = append(os.Environ(), asSSHD+"=1")
	out, err := child.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestListeningSSHDIsFound") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// TestResolversAreFound: by the names of their users, and by the names of the programs that run.
func TestResolversAreFound(t *testing.T) {
	t.Parallel()
	got := knownResolvers(func(name string) (uint32, error) {
		if uid := map[string]uint32{"systemd-resolve": 101, "dnsmasq": 102, "consul": 103, "web": 104}[name]; uid != 0 {
			return uid, nil
		}
		return 0, errors.New("no such user")
	})
	if want := []Resolver{{101, "systemd-resolve"}, {102, "dnsmasq"}, {103, "consul"}}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	sleep, err := exec.LookPath("sleep")
	path := filepath.Join(t.TempDir(), "unbound")
	if err == nil {
		err = os.Symlink(sleep, path)
	}
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), path, "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	if facts := FindFacts(""); !slices.Contains(facts.Resolvers, Resolver{uint32(os.Geteuid()), "unbound"}) {
		t.Errorf("%+v", facts.Resolvers)
	}
}
