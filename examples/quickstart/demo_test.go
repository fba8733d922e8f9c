package quickstart

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

const (
	web    = "spiffe://cluster.local/ns/shop/sa/web"
	orders = "spiffe://cluster.local/ns/shop/sa/orders"
)

// TestDemo runs demo.py as `make demo` does and ends it as Ctrl-C does: nothing
// may be left running. It has fixed ports, as the README tells people of them.
func TestDemo(t *testing.T) {
	t.Parallel()
	envoy := envoytest.Binary(t)
	m := meshtest.New(t, "", nil)
	fairlead, shared := m.Binaries()
	awaitPorts(t, "127.0.0.1:15012", "127.0.0.1:15014", "127.0.0.1:18080", "127.0.0.1:18081", "127.0.0.1:18082", "127.0.0.1:18083",
		"127.0.0.11:8080", "127.0.0.11:9080", "127.0.0.12:9080", "127.0.0.13:9080", "127.0.0.14:9090")
	state := filepath.Join(m.Dir, "demo")
	// The directory of the sockets is made by the script: it is in here, so that
	// every process of this demo can be known by its arguments.
	tmp, err := os.MkdirTemp("", "fd") //nolint:usetesting // the path of a unix socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	// Other tests run the same service: a name of its own tells this demo's apart.
	app := filepath.Join(tmp, "app")
	if err := os.Symlink(shared, app); err != nil {
		t.Fatal(err)
	}
	demo := m.Start("demo", "env", "TMPDIR="+tmp, "python3", "demo.py",
		"--fairlead", fairlead, "--app", app, "--envoy", envoy, "--state", state)
	ours := func() map[int]string { return processes(t, tmp, state) }
	t.Cleanup(func() {
		for pid := range ours() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	demo.Eventually(envoytest.Patience, func() error {
		if log := demo.Log(); !strings.Contains(log, "Ctrl-C ends everything") {
			return fmt.Errorf("it has not come up:\n%s", log)
		}
		return nil
	})
	a, err := meshtest.NewClient(t, "").Get(t.Context(), "http://127.0.0.11:8080/")
	if err != nil || a.Next == nil || a.Next.Caller != web || a.Next.Next == nil || a.Next.Next.Caller != orders {
		t.Errorf("asking web: %+v, %v", a, err)
	}
	// The script, the control plane, and for each host an application, an agent
	// and an Envoy.
	if up := ours(); len(up) != 2+3*4 {
		t.Errorf("%d processes are up: %v", len(up), up)
	}
	if err := syscall.Kill(demo.PID(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if !demo.Ended() {
			return fmt.Errorf("it does not end on Ctrl-C:\n%s", demo.Log())
		}
		return nil
	})
	if left := ours(); len(left) != 0 {
		t.Errorf("left running: %v", left)
	}
	if left, err := filepath.Glob(filepath.Join(tmp, "fairlead-*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// awaitPorts waits for a demo that somebody runs by hand to end.
func awaitPorts(t *testing.T, addresses ...string) {
	t.Helper()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		for _, a := range addresses {
			var lc net.ListenConfig
			l, err := lc.Listen(t.Context(), "tcp", a)
			if err != nil {
				return fmt.Errorf("the demo needs this port: %w", err)
			}
			if err := l.Close(); err != nil {
				return err
			}
		}
		return nil
	})
}

// processes are those with one of the texts in their arguments.
func processes(t *testing.T, texts ...string) map[int]string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]string{}
	for _, d := range dirs {
		line, err := os.ReadFile(filepath.Join(d, "cmdline"))
		pid, bad := strconv.Atoi(filepath.Base(d))
		if err != nil || bad != nil {
			continue // it has just ended
		}
		for _, text := range texts {
			if bytes.Contains(line, []byte(text)) {
				found[pid] = strings.ReplaceAll(string(line), "\x00", " ")
			}
		}
	}
	return found
}

// TestDemoWithout shows that the script tells what is missing.
func TestDemoWithout(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "python3", "demo.py", "--state", t.TempDir(), "--envoy", "/nowhere/envoy",
		"--fairlead", "/nowhere/fairlead").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "/nowhere/fairlead") || strings.Contains(string(out), "Traceback") {
		t.Errorf("it should say what is missing in one line: %v\n%s", err, out)
	}
}
