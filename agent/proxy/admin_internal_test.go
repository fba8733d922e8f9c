package proxy

import (
	"bufio"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/portholder"
)

// otherUser has files of nobody.
const otherUser = 54321

// listenAs is a process of another user that listens.
func listenAs(t *testing.T, user int) (netip.AddrPort, *handle) {
	t.Helper()
	const program = `import os, socket, sys
os.setuid(int(sys.argv[1]))
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen()
print("127.0.0.1:%d" % s.getsockname()[1], flush=True); sys.stdin.read()`
	cmd := exec.CommandContext(t.Context(), "python3", "-c", program, strconv.Itoa(user)) // which the user may not be allowed to start
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	at, err := netip.ParseAddrPort(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	h, err := openHandle(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.close)
	return at, h
}

// TestAdminInterfaceOfAnInvisibleEnvoy looks for who listens as root does in a container without
// CAP_SYS_PTRACE: the files of other users' processes are not visible. The user of the socket decides then,
// so an Envoy of its own user is drained, and nobody else's is.
func TestAdminInterfaceOfAnInvisibleEnvoy(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		envoytest.Missing(t, "only root can start a process of another user")
	}
	at, own := listenAs(t, otherUser)
	elsewhere, other := listenAs(t, otherUser+1)
	if err := (&Admin{}).listens(at, own); err != nil {
		t.Errorf("with all rights: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // it ends with the goroutine: it has lost a capability
		header, caps := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
		if err := unix.Capget(&header, &caps[0]); err != nil {
			t.Error(err)
			return
		}
		caps[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
		caps[0].Permitted &^= 1 << unix.CAP_SYS_PTRACE
		if err := unix.Capset(&header, &caps[0]); err != nil {
			t.Error(err)
			return
		}
		if ids, users := portholder.Listeners(at); len(ids) > 0 || len(users) != 1 || users[0] != otherUser {
			t.Errorf("processes %v of users %v are visible: the test shows nothing", ids, users)
		}
		if err := (&Admin{}).listens(at, own); err != nil {
			t.Errorf("its own: %v", err)
		}
		for _, c := range []struct {
			at netip.AddrPort
			h  *handle
		}{{at, other}, {elsewhere, own}, {netip.MustParseAddrPort("127.0.0.1:1"), own}} {
			if err := (&Admin{}).listens(c.at, c.h); !errors.Is(err, errNotIts) {
				t.Errorf("at %s, process %d: %v", c.at, c.h.pid, err)
			}
		}
	}()
	<-done
}
