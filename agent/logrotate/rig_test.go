package logrotate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const deadline = envoytest.Patience

// rig is a real Envoy with an access log, whose output is a file.
type rig struct {
	tb     testing.TB
	dir    string // of the access log
	log    string // the access log
	output string
	url    string
	admin  string
	cmd    *exec.Cmd
	sent   int
	logged *envoytest.Log // of the rotators
}

// neverDue is a size, in bytes, that no log of a test has. It is small, because a rotator wants so
// much of the file system to be free, and a test cannot choose how full the machine is.
const neverDue = 16 << 20

// padding makes lines long.
const padding = 400

// wholeLine is a line of the access log.
var wholeLine = regexp.MustCompile(`^n=([0-9]+) x{400}$`)

// startEnvoy starts an Envoy that answers every request, and logs its header x-n in log; empty
// means access.log in a directory of its own.
func startEnvoy(tb testing.TB, version, log string) *rig {
	tb.Helper()
	binary := envoytest.BinaryVersion(tb, version)
	dir := resolved(tb.TempDir())
	g := &rig{tb: tb, dir: dir, log: log, output: filepath.Join(dir, "run", "envoy.log"), logged: &envoytest.Log{}}
	if log == "" {
		g.log = filepath.Join(dir, "access.log")
	}
	if err := os.Mkdir(filepath.Join(dir, "run"), 0o750); err != nil {
		tb.Fatal(err)
	}
	ports := envoytest.FreePorts(tb, 2)
	g.url, g.admin = fmt.Sprintf("http://127.0.0.1:%d/", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	boot := fmt.Sprintf(`{"admin":{"address":{"socket_address":{"address":"127.0.0.1","port_value":%d}}},
	"static_resources":{"listeners":[{"name":"l","address":{"socket_address":{"address":"127.0.0.1","port_value":%d}},"filter_chains":[{"filters":[
	 {"name":"hcm","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
	  "stat_prefix":"in","route_config":{"name":"r","virtual_hosts":[{"name":"all","domains":["*"],"routes":[{"match":{"prefix":"/"},"direct_response":{"status":200}}]}]},
	  "access_log":[{"name":"file","typed_config":{"@type":"type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog","path":%q,
	   "log_format":{"text_format_source":{"inline_string":"n=%%REQ(X-N)%% %s\n"}}}}],
	  "http_filters":[{"name":"router","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}]}}`,
		ports[1], ports[0], g.log, strings.Repeat("x", padding))
	path := filepath.Join(dir, "run", "envoy.json")
	if err := os.WriteFile(path, []byte(boot), 0o600); err != nil {
		tb.Fatal(err)
	}
	out, err := os.OpenFile(g.output, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	defer out.Close()
	g.cmd = exec.Command(binary, "-c", path, "--disable-hot-restart", "--concurrency", "2", "--log-level", "error", "--file-flush-interval-msec", "10")
	g.cmd.Stdout, g.cmd.Stderr = out, out
	if err := g.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = g.cmd.Process.Kill()
		_ = g.cmd.Wait()
		if tb.Failed() {
			b, _ := os.ReadFile(g.output)
			tb.Logf("envoy.log:\n%.400s\nrotators:\n%.2000s", b, g.logged.String())
		}
	})
	envoytest.Eventually(tb, deadline, func() error { return g.ask(http.MethodGet, g.admin+"/ready", nil) })
	return g
}

func (g *rig) ask(method, url string, header http.Header) error {
	req, err := http.NewRequestWithContext(context.Background(), method, url, http.NoBody)
	if err != nil {
		return err
	}
	req.Header = header
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: deadline}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, url, res.Status)
	}
	return nil
}

// send sends so many requests, each with a number of its own.
func (g *rig) send(n int) {
	g.tb.Helper()
	const at = 8
	var wg sync.WaitGroup
	errs := make([]error, at)
	for w := range at {
		wg.Go(func() {
			t := &http.Transport{}
			defer t.CloseIdleConnections()
			c := http.Client{Transport: t, Timeout: deadline}
			for i := w; i < n; i += at {
				req, err := http.NewRequestWithContext(g.tb.Context(), http.MethodGet, g.url, http.NoBody)
				if err != nil {
					errs[w] = err
					return
				}
				req.Header.Set("X-N", strconv.Itoa(g.sent+i))
				res, err := c.Do(req)
				if err != nil {
					errs[w] = err
					return
				}
				res.Body.Close()
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		g.tb.Fatal(err)
	}
	g.sent += n
}

// config is for a rotator of this Envoy.
func (g *rig) config(size int64, files int) Config {
	return Config{
		Logger: slog.New(slog.NewTextHandler(g.logged, nil)), MaxSize: size, Files: files, Interval: time.Millisecond,
		Process: func() (int, string) { return g.cmd.Process.Pid, "one" },
		Reopen:  func(context.Context) error { return g.ask(http.MethodPost, g.admin+"/reopen_logs", nil) },
		Private: []string{filepath.Join(g.dir, "run")},
	}
}

func (g *rig) rotator(c Config) *Rotator {
	g.tb.Helper()
	r, err := New(c)
	if err != nil {
		g.tb.Fatal(err)
	}
	return r
}

// run runs a rotator until the function that it returns is called.
func (g *rig) run(r *Rotator) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			g.tb.Error(err)
		}
	})
	g.tb.Cleanup(stop)
	return stop
}

// all are the contents of a log and of its rotated files, by name.
func all(tb testing.TB, path string) map[string][]byte {
	tb.Helper()
	out := map[string][]byte{}
	names, err := filepath.Glob(path + "*")
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			tb.Fatal(err)
		}
		out[filepath.Base(name)] = b
	}
	return out
}

// complete is an error unless every line that was sent is there, once and whole.
func (g *rig) complete(files map[string][]byte) error {
	in := map[int]string{}
	for name, content := range files {
		if len(content) > 0 && !bytes.HasSuffix(content, []byte("\n")) {
			return fmt.Errorf("%s ends within a line", name)
		}
		for line := range bytes.Lines(content) {
			m := wholeLine.FindSubmatch(bytes.TrimSuffix(line, []byte("\n")))
			if m == nil {
				return fmt.Errorf("%s has a line that is not whole: %.60q", name, line)
			}
			n, err := strconv.Atoi(string(m[1]))
			if err != nil {
				return err
			}
			if was, twice := in[n]; twice {
				return fmt.Errorf("line %d is in %s and in %s", n, was, name)
			}
			in[n] = name
		}
	}
	if len(in) != g.sent {
		return fmt.Errorf("%d lines of %d requests", len(in), g.sent)
	}
	return nil
}

// holds is the path of the access log that Envoy has open.
func (g *rig) holds() []string {
	g.tb.Helper()
	files, err := held(g.cmd.Process.Pid)
	if err != nil {
		g.tb.Fatal(err)
	}
	var out []string
	for _, f := range files {
		if f.path != g.output {
			out = append(out, f.path)
		}
	}
	return out
}

// narrowModes fails the test if other users may read a file of a directory.
func narrowModes(tb testing.TB, pattern string) {
	tb.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		tb.Fatal("no files at ", pattern, err)
	}
	for _, name := range names {
		fi, err := os.Lstat(name)
		if err != nil {
			tb.Fatal(err)
		}
		if fi.Mode().Perm()&^widest != 0 {
			tb.Errorf("%s has the mode %v", name, fi.Mode())
		}
	}
}

func write(tb testing.TB, path, content string, mode os.FileMode) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		tb.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		tb.Fatal(err)
	}
}

func mustStat(tb testing.TB, path string) fileID {
	tb.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		tb.Fatal(err)
	}
	return idOf(&st)
}
