package pages

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
	"github.com/fairlead/fairlead/internal/nethost"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

// twoHosts are two hosts with the addresses of the pages.
type twoHosts struct {
	*meshtest.Mesh
	t     *testing.T
	hosts map[string]*host // by address
	// text and records count packets between the hosts: those of HTTP as anybody can read it, and those that
	// begin with a record of TLS that has data.
	text, records func() int64
}

// host is one host of a newcomer.
type host struct {
	*twoHosts
	name string
	dir  string // has its own directories
	pid  int    // of its first process
}

// setUp makes the namespaces of a host; $1 is its name, $2 its own directory.
const setUp = `set -e
hostname "$1"
cp -a /etc/. "$2/etc"
printf '127.0.0.1\tlocalhost\n127.0.1.1\t%s\n\n::1\tlocalhost ip6-localhost ip6-loopback\n' "$1" > "$2/etc/hosts.debian"
mount --bind "$2/etc" /etc
cat /etc/hosts.debian > /etc/hosts
mkdir -p /etc/fairlead
for d in root run; do mount --bind "$2/$d" "/$d"; done
mount --bind "$2/lib" /var/lib
mount --bind "$2/bin" /usr/local/bin
touch /run/ready
exec sleep infinity`

// newLab makes two hosts, 10.0.0.1 and 10.0.0.2.
func newLab(t *testing.T) *twoHosts {
	t.Helper()
	for _, program := range []string{"unshare", "nsenter", "mount", "hostname", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			envoytest.Missing(t, "%s is not installed: apt-get install util-linux mount hostname curl", program)
		}
	}
	one, two := nethost.New(t), nethost.New(t)
	t.Parallel()
	nethost.Link(one, two, 0)
	l := &twoHosts{
		Mesh: meshtest.New(t, "", nil), t: t, hosts: map[string]*host{},
		text:    one.WireWith("v0a", func(b []byte) bool { return bytes.Contains(b, []byte("HTTP/")) }),
		records: one.WireWith("v0a", func(b []byte) bool { return bytes.HasPrefix(b, []byte("\x17\x03\x03")) }),
	}
	for i, ns := range []*nethost.Host{one, two} {
		l.addHost(ns, fmt.Sprintf("10.0.0.%d", i+1), fmt.Sprintf("debian-%d", i+1))
	}
	return l
}

func (l *twoHosts) addHost(ns *nethost.Host, address, name string) {
	l.t.Helper()
	dir := l.t.TempDir()
	for _, d := range []string{"etc", "root", "run", "lib", "bin"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			l.t.Fatal(err)
		}
	}
	fairlead, app := l.Binaries()
	for program, path := range map[string]string{"fairlead": fairlead, "app": app, "envoy": envoytest.Binary(l.t)} {
		if err := os.Symlink(path, filepath.Join(dir, "bin", program)); err != nil {
			l.t.Fatal(err)
		}
	}
	p := l.Start("host "+address, "ip", "netns", "exec", ns.Name, "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "sh", "-c", setUp, "sh", name, dir)
	p.Eventually(envoytest.Patience, func() error {
		_, err := os.Stat(filepath.Join(dir, "run", "ready"))
		return err
	})
	children, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", p.PID()))
	if err != nil {
		l.t.Fatal(err)
	}
	h := &host{twoHosts: l, name: name, dir: dir}
	if h.pid, err = strconv.Atoi(strings.TrimSpace(string(children))); err != nil {
		l.t.Fatal(err)
	}
	l.hosts[address] = h
}

// overSSH is a command on another host, perhaps with a file of this one as its input.
var overSSH = regexp.MustCompile(`^(?:exec )?ssh (\S+) (.*?)(?: < (\S+))?$`)

// argv runs a line of shell on the host, in the home of root. ssh leads to the other host.
func (h *host) argv(line string) []string {
	m := overSSH.FindStringSubmatch(line)
	if m == nil {
		return []string{"nsenter", "--target", strconv.Itoa(h.pid), "--mount", "--uts", "--net", "--pid", "--", "sh", "-c", "cd /root && " + line}
	}
	argv := h.hosts[m[1]].argv("exec " + m[2])
	if m[3] == "" {
		return argv
	}
	return append([]string{"sh", "-c", `input=$0; exec "$@" < "$input"`, filepath.Join(h.dir, "root", m[3])}, argv...)
}

// shell runs a line and returns what it prints.
func (h *host) shell(line string) (string, error) {
	argv := h.argv(line)
	out, err := exec.CommandContext(h.t.Context(), argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %s: %w\n%s", h.name, line, err, out)
	}
	return string(out), err
}

// terminal runs a line that stays in the foreground, in a terminal of its own.
func (h *host) terminal(name, line string) *meshtest.Process {
	h.t.Helper()
	p := h.Start(name, h.argv("exec "+line)...)
	h.t.Cleanup(func() { // nsenter passes no signal on; with the first process of its namespace the host is gone
		for _, other := range h.hosts {
			_ = syscall.Kill(other.pid, syscall.SIGKILL)
		}
	})
	return p
}

// write puts a file of a page where the page says.
func (h *host) write(path, content string) {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), "nsenter", h.argv(fmt.Sprintf("mkdir -p $(dirname %[1]s) && cat > %[1]s", path))[1:]...)
	cmd.Stdin = strings.NewReader(content)
	if out, err := cmd.CombinedOutput(); err != nil {
		h.t.Fatalf("writing %s: %v\n%s", path, err, out)
	}
}
