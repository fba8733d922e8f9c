package envoytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Config says which Envoy to start and how.
type Config struct {
	// Bootstrap is the bootstrap as JSON. Unless it has an admin address, pass
	// one with AdminAddress.
	Bootstrap []byte
	// Version is one of [Versions]; empty means [Binary].
	Version string
	// Args are further arguments.
	Args []string
	// Env is the environment; nil means that of the test.
	Env []string
}

// Envoy is a running Envoy. It ends with its test.
type Envoy struct {
	cmd    *exec.Cmd
	log    *Log
	admin  string
	done   chan struct{}
	client *http.Client
}

// Start runs an Envoy until the test ends. The bootstrap's admin interface must
// listen on port 0 of 127.0.0.1: see [AdminJSON].
func Start(tb testing.TB, c Config) *Envoy {
	tb.Helper()
	bin := Binary(tb)
	if c.Version != "" {
		bin = BinaryVersion(tb, c.Version)
	}
	dir := tb.TempDir()
	boot := filepath.Join(dir, "bootstrap.json")
	if err := os.WriteFile(boot, c.Bootstrap, 0o600); err != nil {
		tb.Fatal(err)
	}
	adminFile := filepath.Join(dir, "admin")
	args := append([]string{
		"-c", boot, "--use-dynamic-base-id", "--concurrency", "1", "--admin-address-path", adminFile,
		"--log-level", "info", "--drain-time-s", "1", "--parent-shutdown-time-s", "2",
	}, c.Args...)
	e := &Envoy{
		cmd: exec.Command(bin, args...), log: &Log{}, done: make(chan struct{}),
		client: &http.Client{Timeout: Attempt},
	}
	e.cmd.Stdout, e.cmd.Stderr, e.cmd.Env = e.log, e.log, c.Env
	if err := e.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go func() {
		defer close(e.done)
		_ = e.cmd.Wait()
	}()
	tb.Cleanup(func() {
		e.Kill()
		if tb.Failed() {
			tb.Logf("envoy's log:\n%s", e.Log())
		}
	})
	Eventually(tb, Patience, func() error {
		select {
		case <-e.done:
			tb.Fatalf("envoy ended: %v\n%s", e.cmd.ProcessState, e.Log())
		default:
		}
		b, err := os.ReadFile(adminFile)
		if err != nil {
			return err
		}
		if e.admin = strings.TrimSpace(string(b)); e.admin == "" {
			return errors.New("admin address not written yet")
		}
		_, err = e.get(tb.Context(), "/server_info")
		return err
	})
	return e
}

// AdminJSON is the admin section of a bootstrap for [Start].
const AdminJSON = `{"address":{"socket_address":{"address":"127.0.0.1","port_value":0}}}`

// Validate runs `envoy --mode validate` over a bootstrap in JSON.
func Validate(tb testing.TB, bootstrap []byte) error {
	tb.Helper()
	return validate(tb, Binary(tb), bootstrap)
}

// ValidateWith is [Validate] with the Envoy of a version.
func ValidateWith(tb testing.TB, version string, bootstrap []byte) error {
	tb.Helper()
	return validate(tb, BinaryVersion(tb, version), bootstrap)
}

func validate(tb testing.TB, binary string, bootstrap []byte) error {
	tb.Helper()
	boot := filepath.Join(tb.TempDir(), "bootstrap.json")
	if err := os.WriteFile(boot, bootstrap, 0o600); err != nil {
		tb.Fatal(err)
	}
	out, err := exec.CommandContext(tb.Context(), binary, "--mode", "validate", "-c", boot).CombinedOutput()
	if err != nil {
		return fmt.Errorf("envoy --mode validate: %w\n%s", err, out)
	}
	return nil
}

// PID is the process id.
func (e *Envoy) PID() int { return e.cmd.Process.Pid }

// Kill ends the process at once and waits for it.
func (e *Envoy) Kill() {
	_ = e.cmd.Process.Kill()
	<-e.done
}

// Log is what Envoy has printed so far.
func (e *Envoy) Log() string { return e.log.String() }

// AdminAddress is the HOST:PORT of the admin interface.
func (e *Envoy) AdminAddress() string { return e.admin }

// Admin fetches a path of the admin interface.
func (e *Envoy) Admin(tb testing.TB, path string) string {
	tb.Helper()
	s, err := e.get(tb.Context(), path)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func (e *Envoy) get(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.admin+path, http.NoBody)
	if err != nil {
		return "", err
	}
	res, err := e.client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

// Stat is the value of one counter or gauge, 0 where Envoy has none of that
// name.
func (e *Envoy) Stat(tb testing.TB, name string) int {
	tb.Helper()
	for line := range strings.Lines(e.Admin(tb, "/stats?usedonly")) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && k == name {
			n, err := strconv.Atoi(v)
			if err != nil {
				tb.Fatalf("stat %s: %v", name, err)
			}
			return n
		}
	}
	return 0
}

// NoRejections fails the test if Envoy has refused any update.
func (e *Envoy) NoRejections(tb testing.TB) {
	tb.Helper()
	for line := range strings.Lines(e.Admin(tb, "/stats?usedonly&filter=update_rejected")) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && v != "0" {
			tb.Errorf("envoy rejected updates: %s = %s\n%s", k, v, e.Log())
		}
	}
}

// Patience is as long as anything may take on a slow machine with other work. It is
// the deadline of every wait whose length is not itself what a test asserts: a shorter
// one tells nothing but how busy the machine is.
const Patience = 2 * time.Minute

// Attempt is as long as one request or connection may take that is answered at once on an idle
// machine, and may be asked again until [Patience] ends.
const Attempt = 30 * time.Second

// slow is from where on the length of a wait is told in the log of a test.
const slow = 5 * time.Second

// Eventually asks until the answer is nil, and fails the test with the last
// error after the deadline. It polls because the other side is a process. A question
// that is costly is asked less often, so that the wait does not slow what it waits for.
func Eventually(tb testing.TB, deadline time.Duration, ask func() error) {
	tb.Helper()
	end := time.NewTimer(deadline)
	defer end.Stop()
	first := time.Now()
	for {
		began := time.Now()
		err := ask()
		if err == nil {
			if took := time.Since(first); took > slow {
				tb.Logf("waited for %s", took.Round(time.Millisecond))
			}
			return
		}
		pause := time.NewTimer(max(10*time.Millisecond, min(time.Since(began), time.Second)))
		select {
		case <-pause.C:
		case <-end.C:
			pause.Stop()
			tb.Fatalf("still after %s: %v", deadline, err)
		}
	}
}

// Log is an [io.Writer] that other goroutines, or a process, write while a test reads it. The
// zero value is empty.
type Log struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

// Write implements [io.Writer].
func (b *Log) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String is everything that was written.
func (b *Log) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// ShortDir makes a directory until the end of the test. Its path is short, as that of a unix
// socket has to be (107 bytes on Linux); that of TB.TempDir has the name of the test.
func ShortDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "fl") //nolint:usetesting // see above
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
