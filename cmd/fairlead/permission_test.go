package main

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// nobody is a user who owns nothing.
const nobody = 65534

// TestDeniedSaysWhoMay runs every command that asks a socket, and every process with a state
// directory, as a user who may not, and expects owner, group, mode and what to do.
func TestDeniedSaysWhoMay(t *testing.T) {
	t.Parallel()
	if text := os.Getenv("FAIRLEAD_TEST_DENIED"); text != "" {
		var args []string
		if err := json.Unmarshal([]byte(text), &args); err != nil {
			t.Fatal(err)
		}
		os.Exit(run(t.Context(), args, os.Stdout, os.Stderr))
	}
	if os.Geteuid() != 0 {
		envoytest.Missing(t, "only root can run commands as another user")
	}
	as := newOtherUser(t)
	closed := as.socket(t, "closed", 0o750, 0o666) // the directory is closed
	open := as.socket(t, "open", 0o755, 0o660)     // the socket is
	if err := os.Chown(filepath.Join(open, "admin.sock"), 0, 12345); err != nil {
		t.Fatal(err)
	}
	asked, kept := 0, 0
	for _, c := range commands(newRoot()) {
		path := strings.Fields(c.CommandPath())[1:]
		if c.Name() == "proxy-config" {
			path = append(path, "all") // a type is one of few, and known before anybody is asked
		}
		for _, flag := range []string{"run-dir", "agent-run-dir"} {
			if c.Flag(flag) == nil || c.Flag("wait") != nil || c.Flag("state-dir") != nil {
				continue // those that wait for a result have done their work before they ask
			}
			asked++
			path := path
			if c.CommandPath() == "fairlead authz check" && flag == "run-dir" {
				path = append(slices.Clone(path), "proxy") // without one it asks nobody
			}
			for dir, want := range map[string][]string{
				closed: {`"` + closed + `" belongs to user root and group root, mode 0750`, "as user nobody", "run the command as root (sudo)"},
				open:   {`admin.sock" belongs to user root and group 12345, mode 0660`, "or add nobody to the group 12345"},
			} {
				as.wantRefused(t, append(slices.Clone(path), "--"+flag, dir), want)
			}
		}
		if c.Flag("state-dir") != nil {
			kept++
			states := []string{closed, filepath.Join(closed, "new"), filepath.Join(open, "new")}
			more := []string{"--run-dir", filepath.Join(as.home, "run")}
			switch c.CommandPath() {
			case "fairlead agent check":
				states = states[:2] // it makes none
			case "fairlead analyze":
				states, more = states[:2], []string{as.home}
			}
			for _, state := range states {
				as.wantRefused(t, append(append(slices.Clone(path), "--state-dir", state), more...), []string{`" belongs to user root and group root, mode 07`, "run the command as root (sudo)"})
			}
		}
	}
	if asked < 10 || kept < 2 {
		t.Errorf("found %d commands that ask a socket and %d with a state directory: this test looks for them in the wrong way", asked, kept)
	}
	as.wantRefused(t, []string{"validate", closed}, []string{"belongs to user root"})
	as.wantRefused(t, []string{"validate", filepath.Join(closed, "a.yaml")}, []string{"belongs to user root"})
}

// otherUser runs commands as nobody.
type otherUser struct {
	self, home, file string
}

func newOtherUser(t *testing.T) otherUser {
	t.Helper()
	home := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	as := otherUser{self: filepath.Join(home, "fairlead"), home: home, file: filepath.Join(home, "file")}
	for _, err := range []error{
		os.Chmod(filepath.Dir(home), 0o755),
		writeProgram(as.self, content),
		os.WriteFile(as.file, []byte("{}"), 0o644),
		os.Mkdir(filepath.Join(home, "run"), 0o755),
		os.Chown(filepath.Join(home, "run"), nobody, nobody),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return as
}

// writeProgram writes a file that is executed then. Meanwhile no other test may start a process: it
// would have the file open for writing until its program begins, and the kernel executes no such file.
func writeProgram(path string, content []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, content, 0o755)
}

// socket makes a directory with an admin.sock.
func (as otherUser) socket(t *testing.T, name string, dirMode, socketMode os.FileMode) string {
	t.Helper()
	dir := filepath.Join(as.home, name)
	if err := os.Mkdir(dir, dirMode); err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", filepath.Join(dir, "admin.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := os.Chmod(filepath.Join(dir, "admin.sock"), socketMode); err != nil {
		t.Fatal(err)
	}
	return dir
}

var needs = regexp.MustCompile(`(--[a-z-]+) is required|(missing argument|PROXY is required)|(manifests with --config-dir)`)

// wantRefused gives a command what it asks for, until it comes to what it may not do.
func (as otherUser) wantRefused(t *testing.T, args, want []string) {
	t.Helper()
	for range 6 {
		text, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), as.self, "-test.run=^TestDeniedSaysWhoMay$")
		cmd.Env, cmd.Dir = append(os.Environ(), "HOME="+as.home, "FAIRLEAD_TEST_DENIED="+string(text)), as.home
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		m := needs.FindStringSubmatch(string(out))
		switch {
		case err == nil:
			t.Fatalf("%q: not refused:\n%s", args, out)
		case m == nil:
			for _, w := range want {
				if !strings.Contains(string(out), w) || cmd.ProcessState.ExitCode() != exitFailed {
					t.Errorf("%q: exit code %d; it does not say %s:\n%s", args, cmd.ProcessState.ExitCode(), w, out)
				}
			}
			return
		case m[1] != "":
			args = append(args, m[1], "shop/web")
		case m[3] != "":
			args = append(args, "--config-dir", as.home, "--xds-address", "127.0.0.1:0", "--http-address", "")
		default:
			args = append(args, as.file)
		}
	}
	t.Errorf("%q: still not what it needs", args)
}
