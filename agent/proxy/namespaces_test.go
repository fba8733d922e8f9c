package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// agentIn starts this test's binary as an agent in namespaces of its own, by a script in which $AGENT
// is the command of an agent and $DIR its run directory. Everything that the script leaves running in
// the run directory ends with the test.
func agentIn(t *testing.T, c Config, namespaces []string, script string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		envoytest.Missing(t, "needs root: only root can make namespaces that see the other processes")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(c.StateFile)
	child := exec.Command("unshare", append(slices.Clone(namespaces), "sh", "-c", script)...)
	child.Env = append(os.Environ(), "AGENT="+exe, "DIR="+dir, childDir+"="+dir, childBin+"="+c.Binary)
	log, err := os.OpenFile(agentLog(c), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	t.Cleanup(func() { _ = os.Remove(log.Name()) })
	child.Stderr = log
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, proc := range envoysWith(t, c) {
			_ = syscall.Kill(proc, syscall.SIGKILL)
		}
		_ = syscall.Kill(-child.Process.Pid, syscall.SIGKILL)
		_ = child.Wait()
	})
	return child
}

// agentLog is outside of the run directory, which a container has for itself.
func agentLog(c Config) string { return filepath.Dir(c.StateFile) + ".log" }

// takesOver waits until an agent has taken over an Envoy.
func takesOver(t *testing.T, c Config) {
	t.Helper()
	envoytest.Eventually(t, deadline, func() error {
		b, err := os.ReadFile(agentLog(c))
		if err == nil && !strings.Contains(string(b), "taking over the running Envoy") {
			err = fmt.Errorf("no Envoy was taken over:\n%s", b)
		}
		return err
	})
}

// envoysWith are the Envoys with a bootstrap of this path, in whatever namespace.
func envoysWith(t *testing.T, c Config) (ids []int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		proc, err := strconv.Atoi(filepath.Base(dir))
		if path, ok := startedWith(proc); err == nil && ok && path == c.BootstrapPath && alive(proc) {
			ids = append(ids, proc)
		}
	}
	return ids
}

// oneEnvoy waits for an Envoy that serves in its own namespaces, beside those known.
func oneEnvoy(t *testing.T, c Config, known ...int) (id int) {
	t.Helper()
	envoytest.Eventually(t, deadline, func() error {
		ids := slices.DeleteFunc(envoysWith(t, c), func(id int) bool { return slices.Contains(known, id) })
		if len(ids) != 1 {
			return fmt.Errorf("Envoys %v", ids)
		}
		id = ids[0]
		_, err := os.Stat(filepath.Join(procPath(id, "root"), filepath.Dir(c.BootstrapPath), "admin.sock"))
		return err
	})
	return id
}

// TestEnvoyOfAnotherContainerIsLeftAlone: an Envoy of a container has the same binary and the same
// paths as that of an agent which sees it in /proc. The agent starts its own, and ends it, and the
// other one is still there.
func TestEnvoyOfAnotherContainerIsLeftAlone(t *testing.T) {
	t.Parallel()
	const container = `mount -t tmpfs none "$DIR" && "$AGENT"`
	for name, namespaces := range map[string][]string{
		"mounts":           {"--mount"},
		"mounts_pids":      {"--mount", "--pid", "--fork", "--mount-proc"},
		"pids_shared_proc": {"--mount", "--pid", "--fork"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := testConfig(t)
			agentIn(t, c, namespaces, container)
			other := oneEnvoy(t, c)
			if Running(c.StateFile, c.BootstrapPath) {
				t.Error("the Envoy of another container counts as ours")
			}
			r := run(t, c)
			if own := r.live(t, 0); own.PID == other || own.Adopted {
				t.Errorf("status = %+v, while the other Envoy is %d", own, other)
			}
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			if !alive(other) {
				t.Error("the Envoy of another container was ended")
			}
		})
	}
}

// TestNewMountNamespaceKeepsEnvoy: systemd makes a new mount namespace for each start of the agent's
// unit, and Envoy stays in that of its own start. The agent that returns takes it over, or replaces it
// if nothing is on record.
func TestNewMountNamespaceKeepsEnvoy(t *testing.T) {
	t.Parallel()
	const unit = `mount -t tmpfs none /mnt && exec "$AGENT"` // PrivateTmp= and others
	for _, recorded := range []bool{true, false} {
		t.Run(fmt.Sprintf("recorded_%t", recorded), func(t *testing.T) {
			t.Parallel()
			c := testConfig(t)
			first := agentIn(t, c, []string{"--mount"}, unit)
			id := oneEnvoy(t, c)
			envoytest.Eventually(t, deadline, func() error { return c.Admin.Ready(t.Context()) })
			if err := first.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = first.Wait()
			if !recorded {
				if err := os.Remove(c.StateFile); err != nil {
					t.Fatal(err)
				}
			}
			agentIn(t, c, []string{"--mount"}, unit)
			if !recorded {
				if next := oneEnvoy(t, c, id); alive(id) {
					t.Errorf("two Envoys run: %d and %d", id, next)
				}
				return
			}
			takesOver(t, c)
			if ids := envoysWith(t, c); !slices.Equal(ids, []int{id}) {
				t.Errorf("Envoys %v, want %d alone", ids, id)
			}
			if err := c.Admin.Ready(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSharedProc runs two agents, one after the other, in a container that sees the host's /proc: ids
// there are not those of the container. The second takes over the Envoy of the first, with a record and
// without one.
func TestSharedProc(t *testing.T) {
	t.Parallel()
	for _, recorded := range []bool{true, false} {
		t.Run(fmt.Sprintf("recorded_%t", recorded), func(t *testing.T) {
			t.Parallel()
			c := testConfig(t)
			// The shell is process 1 of the namespace; it waits for the word to kill the first agent.
			agentIn(t, c, []string{"--pid", "--fork"}, `"$AGENT" & until test -e "$DIR/kill"; do sleep 0.05; done; kill -9 $!; wait $!
				test -e "$DIR/forget" && rm "$DIR/envoy.pid.json"; "$AGENT"`)
			id := oneEnvoy(t, c)
			var was record
			envoytest.Eventually(t, deadline, func() (err error) {
				was, err = loadRecord(c.StateFile)
				return err
			})
			if was.PID == id || was.PIDNamespace == "" || was.PIDNamespace == pidNamespace() {
				t.Fatalf("record = %+v, of process %d of this namespace", was, id)
			}
			// An agent of this namespace does not take the number for its own process's.
			if _, err := was.open(); !errors.Is(err, errGone) {
				t.Errorf("open = %v, want errGone", err)
			}
			dir := filepath.Dir(c.StateFile)
			if !recorded {
				if err := os.WriteFile(filepath.Join(dir, "forget"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, "kill"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if recorded {
				takesOver(t, c)
				if ids := envoysWith(t, c); !slices.Equal(ids, []int{id}) {
					t.Errorf("Envoys %v, want %d alone", ids, id)
				}
				return
			}
			if next := oneEnvoy(t, c, id); alive(id) {
				t.Errorf("two Envoys run: %d and %d", id, next)
			}
		})
	}
}

// TestRecordOfAnEarlierRelease: an agent of an earlier release recorded no pid namespace.
func TestRecordOfAnEarlierRelease(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	c.LeaveRunning = true
	first := run(t, c)
	pid := first.live(t, 0).PID
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(c.StateFile)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(b, &fields); err != nil {
		t.Fatal(err)
	}
	delete(fields, "pid_namespace")
	if b, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.StateFile, b, 0o600); err != nil {
		t.Fatal(err)
	}
	c.LeaveRunning = false
	if s := run(t, c).live(t, 0); s.PID != pid || !s.Adopted {
		t.Errorf("status = %+v, want the adopted %d", s, pid)
	}
}

// TestAdminAddressOfAnotherEnvoy gives the next start the address of an admin interface that an Envoy
// of somebody else has. The Envoy that is replaced ends, and the other one is asked for nothing.
func TestAdminAddressOfAnotherEnvoy(t *testing.T) {
	t.Parallel()
	address := "127.0.0.1:" + strconv.Itoa(envoytest.FreePorts(t, 1)[0])
	theirs := testConfig(t)
	theirs.Admin = NewAdmin("tcp", address)
	host, port, _ := strings.Cut(address, ":")
	boot := fmt.Sprintf(`{"admin":{"address":{"socket_address":{"address":%q,"port_value":%s}}}}`, host, port)
	if err := os.WriteFile(theirs.BootstrapPath, []byte(boot), 0o600); err != nil {
		t.Fatal(err)
	}
	other := run(t, theirs)
	pid := other.live(t, 0).PID

	c := testConfig(t)
	c.LeaveRunning = true
	first := run(t, c)
	replaced := first.live(t, 0).PID
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	c.LeaveRunning, c.Fingerprint, c.Admin, c.Listens = false, "two", NewAdmin("tcp", address), []netip.AddrPort{netip.MustParseAddrPort(address)}
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Run = %v, want address in use", err)
	}
	if alive(replaced) {
		t.Error("the Envoy of the run directory was not replaced")
	}
	if s := other.Status(); s.PID != pid || s.Restarts != 0 {
		t.Errorf("another Envoy was ended: %+v", s)
	}
	if b, err := theirs.Admin.Get(t.Context(), "/ready"); err != nil || strings.TrimSpace(string(b)) != "LIVE" {
		t.Errorf("another Envoy was drained: %q, %v", b, err)
	}
}
