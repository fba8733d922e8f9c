package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// envoySecrets are what only the agent and its Envoy know. They are made once: the
// bootstrap has them, and another bootstrap means another Envoy.
type envoySecrets struct {
	// Token is what the Envoy shows at the agent's sockets.
	Token string `json:"token"`
	// AdminSocket is the name of Envoy's admin socket.
	AdminSocket string `json:"admin_socket"`
}

// LogValue implements [slog.LogValuer].
func (envoySecrets) LogValue() slog.Value { return slog.StringValue("[masked]") }

const (
	envoySecretsFile = "envoy-secrets.json" //nolint:gosec // G101: the name of a file
	maxEnvoySecrets  = 4096
	// adminNameLen are 70 random bits. In the shortest directory the path is no
	// longer than that of the socket before it is moved.
	adminNameLen = 14
)

var (
	tokenForm     = regexp.MustCompile(`^[A-Z2-7]{52,}$`)
	adminNameForm = regexp.MustCompile(fmt.Sprintf(`^[a-z2-7]{%d}$`, adminNameLen))
)

func newEnvoySecrets() envoySecrets {
	return envoySecrets{
		Token: rand.Text() + rand.Text(), AdminSocket: strings.ToLower(rand.Text()[:adminNameLen]),
	}
}

// envoySecrets reads the secrets, or makes new ones. It reports true if they are new, so that
// a running Envoy does not know them.
func (a *Agent) envoySecrets(ctx context.Context) (s envoySecrets, made bool) {
	path := a.inState(envoySecretsFile)
	s, err := loadEnvoySecrets(path)
	if err == nil {
		return s, false
	}
	if !errors.Is(err, fs.ErrNotExist) {
		a.log.WarnContext(ctx, "stored tokens for Envoy are unusable; making new ones", "path", path, "err", err)
	}
	s = newEnvoySecrets()
	a.saver.save(path, func() error {
		b, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("saving the secrets of Envoy and agent: %w", err)
		}
		return durable.WriteFile(durable.OS{}, path, append(b, '\n'), 0o600)
	})
	a.saver.flush(ctx)
	return s, true
}

func loadEnvoySecrets(path string) (envoySecrets, error) {
	var s envoySecrets
	fi, err := os.Stat(path)
	if err != nil {
		return s, fmt.Errorf("reading the secrets of Envoy and agent: %w", err)
	}
	if perm := fi.Mode().Perm(); perm&0o077 != 0 {
		return s, fmt.Errorf("reading %q: it has mode %o, so that others than its owner may have read it", path, perm)
	}
	b, err := durable.ReadFile(path, maxEnvoySecrets)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		// Its message could quote the token.
		return envoySecrets{}, fmt.Errorf("reading %q: not the JSON that an agent writes", path)
	}
	if !tokenForm.MatchString(s.Token) || !adminNameForm.MatchString(s.AdminSocket) {
		return envoySecrets{}, fmt.Errorf("reading %q: not the secrets that an agent writes", path)
	}
	return s, nil
}

// adminPaths are the path at which Envoy makes its admin socket, and the path that the agent
// moves it to: a random name in a directory that only Envoy's user can enter.
//
// Every user of a machine can read in /proc/net/unix the path at which a socket was made, but
// not the path that it was moved to.
type adminPaths struct{ made, moved string }

func newAdminPaths(runDir, name string) adminPaths {
	p := adminPaths{made: filepath.Join(runDir, adminSocket), moved: filepath.Join(runDir, "envoy", name)}
	if len(p.moved) > bootstrap.MaxSocketPath {
		p.moved = filepath.Join(runDir, "e", name)
	}
	return p
}

// prepare makes the directory. A socket with another name in it belongs to an Envoy that runs
// with lost secrets: it is renamed.
func (p adminPaths) prepare() error {
	dir := filepath.Dir(p.moved)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of Envoy's admin socket: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // G302: a directory
		return fmt.Errorf("making the directory of Envoy's admin socket: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading the directory of Envoy's admin socket: %w", err)
	}
	for _, e := range entries {
		if e.Name() == filepath.Base(p.moved) || e.IsDir() {
			continue
		}
		if err := os.Rename(filepath.Join(dir, e.Name()), p.moved); err != nil {
			return fmt.Errorf("renaming Envoy's admin socket: %w", err)
		}
	}
	return nil
}

// move moves the socket. It is called when an Envoy requests its configuration, before it gets
// any: by then Envoy has made the socket, and has no listener yet through which somebody could
// reach it.
func (p adminPaths) move() error {
	err := os.Rename(p.made, p.moved)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Lstat(p.made); errors.Is(err, fs.ErrNotExist) {
		return nil // it was moved before
	}
	// Somebody has removed the directory.
	if err := p.prepare(); err != nil {
		return err
	}
	return os.Rename(p.made, p.moved)
}
