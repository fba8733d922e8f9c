package agent

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/xds/bootstrap"
)

// TestEnvoySecretsAreMadeOnce, and again if others may know them.
func TestEnvoySecretsAreMadeOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	a := &Agent{c: Config{StateDir: t.TempDir()}, log: logger, saver: newSaver(logger)}
	path := a.inState(envoySecretsFile)
	first, made := a.envoySecrets(t.Context())
	if fi, err := os.Stat(path); !made || err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatalf("made %t, %v, %v", made, fi, err)
	}
	if again, made := a.envoySecrets(t.Context()); made || again != first {
		t.Error("the secrets are others after a restart")
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func() error{
		"readable": func() error { return os.Chmod(path, 0o640) },
		"cut":      func() error { return os.WriteFile(path, content[:20], 0o600) },
		"empty":    func() error { return os.WriteFile(path, nil, 0o600) },
		"weak": func() error {
			return os.WriteFile(path, []byte(`{"token":"A","admin_socket":"`+first.AdminSocket+`"}`), 0o600)
		},
		"elsewhere": func() error {
			return os.WriteFile(path, []byte(`{"token":"`+first.Token+`","admin_socket":"../../x"}`), 0o600)
		},
		"huge":    func() error { return os.WriteFile(path, bytes.Repeat([]byte("A"), maxEnvoySecrets+1), 0o600) },
		"removed": func() error { return os.Remove(path) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if next, made := a.envoySecrets(t.Context()); !made || next == first || !tokenForm.MatchString(next.Token) || !adminNameForm.MatchString(next.AdminSocket) {
			t.Errorf("%s: made %t", name, made)
		}
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	if strings.Contains(log.String(), first.Token) {
		t.Error("the token is in the log")
	}
	// What cannot be saved is used all the same.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if s, made := a.envoySecrets(t.Context()); !made || !tokenForm.MatchString(s.Token) || len(a.saver.unsaved(time.Now())) != 1 {
		t.Errorf("made %t: %s", made, log.String())
	}
}

// TestLongestRunDirStillWorks has the longest run directory that was allowed before the admin
// socket was moved.
func TestLongestRunDirStillWorks(t *testing.T) {
	t.Parallel()
	run := "/" + strings.Repeat("a", bootstrap.MaxSocketPath-len("/"+adminSocket)-1)
	p := newAdminPaths(run, newEnvoySecrets().AdminSocket)
	if len(p.made) != bootstrap.MaxSocketPath || len(p.moved) > bootstrap.MaxSocketPath {
		t.Errorf("the paths have %d and %d bytes", len(p.made), len(p.moved))
	}
}

// TestAdminSocketIsMoved, regardless of older files in the run directory.
func TestAdminSocketIsMoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newAdminPaths(dir, "aaaaaaaaaaaaaa")
	put := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what, content string) {
		t.Helper()
		if b, err := os.ReadFile(p.moved); err != nil || string(b) != content {
			t.Errorf("%s: %q, %v", what, b, err)
		}
		if list, err := os.ReadDir(filepath.Dir(p.moved)); err != nil || len(list) != 1 {
			t.Errorf("%s: %v, %v", what, list, err)
		}
	}
	if err := p.prepare(); err != nil {
		t.Fatal(err)
	}
	put(p.made, "one")
	for range 2 { // the second time there is nothing to move
		if err := p.move(); err != nil {
			t.Fatal(err)
		}
		want("moved", "one")
	}
	put(p.made, "two")
	if err := p.move(); err != nil {
		t.Fatal(err)
	}
	want("over that of a dead envoy", "two")
	p = newAdminPaths(dir, "bbbbbbbbbbbbbb")
	if err := p.prepare(); err != nil {
		t.Fatal(err)
	}
	want("that of lost secrets", "two")
	if err := os.RemoveAll(filepath.Dir(p.moved)); err != nil {
		t.Fatal(err)
	}
	put(p.made, "three")
	if err := p.move(); err != nil {
		t.Fatal(err)
	}
	want("into a directory that was cleaned away", "three")
}
