package durable_test

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/pki/durable"
)

func secretFile(t *testing.T, mode fs.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// Every mode: refused exactly where others have a bit.
func TestKeyByMode(t *testing.T) {
	t.Parallel()
	for mode := fs.FileMode(0o400); mode <= 0o777; mode++ {
		path := secretFile(t, mode)
		data, warning, err := durable.ReadKey(path, 100)
		if mode&0o400 == 0 && errors.Is(err, fs.ErrPermission) {
			continue // not root
		}
		if world := mode&0o007 != 0; world != errors.Is(err, durable.ErrExposed) || !world && (err != nil || string(data) != "secret") {
			t.Errorf("mode %#o: %q, %v", mode, data, err)
		}
		// The group of a file that this process makes is its own.
		if warning != "" {
			t.Errorf("mode %#o: warned of the process's own group: %s", mode, warning)
		}
		token, warning, err := durable.ReadToken(path, 100)
		if err != nil || string(token) != "secret" || (warning != "") != (mode&0o007 != 0) {
			t.Errorf("a token of mode %#o: %q, %q, %v", mode, token, warning, err)
		}
	}
	if _, _, err := durable.ReadKey(secretFile(t, 0o600), 3); err == nil {
		t.Error("there is no limit")
	}
}

// strange is a group that is neither root's nor the process's.
const strange = 54321

func TestKeyOfAnotherGroup(t *testing.T) {
	t.Parallel()
	path := secretFile(t, 0o640)
	if err := os.Chown(path, -1, strange); err != nil {
		t.Skipf("only root can give a file to another group: %v", err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, warning, err := durable.ReadKey(path, 100); err != nil || !strings.Contains(warning, strconv.Itoa(strange)) {
		t.Errorf("warning %q, %v: want the group named", warning, err)
	}
	if err := os.Chown(path, -1, 0); err != nil {
		t.Fatal(err)
	}
	if _, warning, err := durable.ReadKey(path, 100); err != nil || warning != "" {
		t.Errorf("root's group: warning %q, %v", warning, err)
	}
	if err := os.Chown(path, -1, strange); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, warning, err := durable.ReadKey(path, 100); err != nil || warning != "" {
		t.Errorf("a group that cannot read it: warning %q, %v", warning, err)
	}
}

// TestKeyOfAnotherUser: whoever owns the file can read and replace it. The user of the
// process and root may.
func TestKeyOfAnotherUser(t *testing.T) {
	t.Parallel()
	for _, mode := range []fs.FileMode{0o400, 0o600, 0o640} {
		for _, owner := range []int{0, os.Geteuid(), strange} {
			path := secretFile(t, mode)
			if err := os.Chown(path, owner, -1); err != nil {
				t.Skipf("only root can give a file away: %v", err)
			}
			want := owner == strange
			for name, read := range map[string]func(string, int64) ([]byte, string, error){"key": durable.ReadKey, "token": durable.ReadToken} {
				data, warning, err := read(path, 100)
				if err != nil || string(data) != "secret" || strings.Contains(warning, "user 54321 owns") != want {
					t.Errorf("%s of user %d, mode %#o: %q, warning %q, %v", name, owner, mode, data, warning, err)
				}
			}
		}
	}
}

// aclOf is a list: owner r, this process's user r, the group as given, mask r.
func aclOf(group uint16, named ...uint32) []byte {
	return aclWith(uint32(os.Geteuid()), group, named...)
}

func aclWith(user uint32, group uint16, named ...uint32) []byte {
	out := binary.LittleEndian.AppendUint32(nil, 2)
	add := func(tag, perm uint16, id uint32) {
		out = binary.LittleEndian.AppendUint16(out, tag)
		out = binary.LittleEndian.AppendUint16(out, perm)
		out = binary.LittleEndian.AppendUint32(out, id)
	}
	const none = ^uint32(0)
	add(0x01, 4, none)
	add(0x02, 4, user)
	add(0x04, group, none)
	for _, g := range named {
		add(0x08, 4, g)
	}
	add(0x10, 4, none)
	add(0x20, 0, none)
	return out
}

// systemd gives a credential to its service by such a list: the mode is 0440 and
// no group can read it.
func TestKeyWithAccessList(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		list []byte
		warn bool
	}{
		{"as systemd has it", aclOf(0), false},
		{"the group can read", aclOf(4), true},
		{"another group can read", aclOf(0, 999_999), true},
		{"root's group can read", aclOf(0, 0), false},
		{"another user can read", aclWith(12345, 0), true},
	} {
		path := secretFile(t, 0o400)
		if err := os.Chown(path, -1, strange); err != nil {
			t.Skipf("only root can give a file to another group: %v", err)
		}
		if err := unix.Setxattr(path, "system.posix_acl_access", tt.list, 0); err != nil {
			t.Skipf("the file system has no access lists: %v", err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o440 {
			t.Fatalf("%s: mode %v, %v: want 0440", tt.name, info.Mode(), err)
		}
		if _, warning, err := durable.ReadKey(path, 100); err != nil || (warning != "") != tt.warn {
			t.Errorf("%s: warning %q, %v", tt.name, warning, err)
		}
	}
}

func TestKeyFromPipe(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if _, err := w.WriteString("secret"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	data, warning, err := durable.ReadKey("/dev/fd/"+strconv.Itoa(int(r.Fd())), 100)
	if err != nil || warning != "" || string(data) != "secret" {
		t.Errorf("%q, %q, %v", data, warning, err)
	}
}

// Whoever parses a private key has read it by ReadKey: a package that does the
// one and not the other is new, and its keys are not judged.
func TestEveryKeyIsJudged(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}{{range .GoFiles}}|{{.}}{{end}}", "../../...").Output()
	if err != nil {
		t.Fatal(err)
	}
	others := map[string]string{
		"agent/workload":    "keys of people's own clients, which DestinationRules name: Envoy itself reads them whatever their mode, so the agent must not refuse what works without it",
		"agent/credential":  "keys of gateways, which other programs write and rotate: it serves them whatever their mode, and warns by itself",
		"internal/meshtest": "keys that tests make",
	}
	ofOthers := func(dir string) bool {
		for name := range others {
			if strings.HasSuffix(dir, filepath.FromSlash(name)) {
				return true
			}
		}
		return false
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		parts := strings.Split(strings.TrimSpace(line), "|")
		var text strings.Builder
		for _, name := range parts[1:] {
			content, err := os.ReadFile(filepath.Join(parts[0], name))
			if err != nil {
				t.Fatal(err)
			}
			text.Write(content)
		}
		if s := text.String(); strings.Contains(s, "LoadX509KeyPair(") {
			t.Errorf("%s: LoadX509KeyPair reads a key that nobody has judged: use durable.ReadKey", parts[0])
		} else if strings.Contains(s, "X509KeyPair(") || strings.Contains(s, "ParsePKCS8PrivateKey(") || strings.Contains(s, "ParseECPrivateKey(") {
			seen++
			if !strings.Contains(s, "durable.ReadKey(") && !ofOthers(parts[0]) {
				t.Errorf("%s: parses a private key, and does not read it by durable.ReadKey", parts[0])
			}
		}
	}
	if seen < 3 {
		t.Errorf("%d packages that parse keys: want 3 or more", seen)
	}
}
