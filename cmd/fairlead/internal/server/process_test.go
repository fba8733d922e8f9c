package server

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/parallel"
	"github.com/fairlead/fairlead/pki/svid"
	"github.com/fairlead/fairlead/registry/files"
)

// Variables by which this test's binary is a server, so that its memory is not
// that of its clients.
const (
	envServe       = "FAIRLEAD_TEST_SERVE" // DIRECTORY,STATE,RUN
	envConnections = "FAIRLEAD_TEST_CONNECTIONS"
	envFiles       = "FAIRLEAD_TEST_FILES"
	envPerAddress  = "FAIRLEAD_TEST_PER_ADDRESS"
)

func TestMain(m *testing.M) {
	if args := os.Getenv(envAttack); args != "" {
		if err := attackAlone(strings.Split(args, ",")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if dirs := os.Getenv(envServe); dirs != "" {
		if err := serveAlone(strings.Split(dirs, ",")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	parallel.Waiting()
	goleak.VerifyTestMain(m)
}

func serveAlone(dirs []string) error {
	if n, err := strconv.ParseUint(os.Getenv(envFiles), 10, 32); err == nil {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return err
		}
	}
	most, _ := strconv.Atoi(os.Getenv(envConnections))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	s, err := New(ctx, Config{
		Roots: []files.Root{{Path: dirs[0]}}, StateDir: dirs[1], RunDir: dirs[2], XDSAddress: "127.0.0.1:0",
		DebounceAfter: 10 * time.Millisecond, SourceWait: 200 * time.Millisecond, MaxConnections: most, MaxUnauthenticatedPerAddress: perAddress(),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	fmt.Println(s.listener.Addr()) //nolint:forbidigo // for who started it
	return s.Run(ctx)
}

// process is a server in a process of its own.
type process struct {
	t      *testing.T
	pid    int
	addr   string
	client *admin.Client
	log    *envoytest.Log
}

// spawn starts a server over a mesh, with settings from the environment.
func spawn(t *testing.T, manifests string, env ...string) *process {
	t.Helper()
	cfg := config(t, treeOf(t, map[string]string{"a.yaml": manifests}))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, log: &envoytest.Log{}, client: admin.NewClient(filepath.Join(cfg.RunDir, "admin.sock"))}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), envServe+"="+strings.Join([]string{cfg.Roots[0].Path, cfg.StateDir, cfg.RunDir}, ","))
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = p.log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			all := p.log.String()
			t.Logf("log:\n%s", all[max(0, len(all)-8000):])
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the server did not start: %v\n%s", err, p.log)
	}
	p.pid, p.addr = cmd.Process.Pid, strings.TrimSpace(line)
	return p
}

// resident is how much memory the process has, in bytes.
func (p *process) resident() int {
	p.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.pid))
	if err != nil {
		p.t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		p.t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// unauthenticated is how many connections there are of peers that have proved
// nothing.
func (p *process) unauthenticated() int {
	p.t.Helper()
	var text []byte
	if err := p.client.Do(p.t.Context(), http.MethodGet, "/metrics", nil, &text); err != nil {
		p.t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, `fairlead_connections{state="handshake"}`) || strings.HasPrefix(line, `fairlead_connections{state="unauthenticated"}`) {
			v, err := strconv.Atoi(strings.Fields(line)[1])
			if err != nil {
				p.t.Fatal(err)
			}
			n += v
		}
	}
	return n
}

// cpu is how long the process has computed.
func (p *process) cpu() time.Duration {
	p.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		p.t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(after)
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond // Linux counts in hundredths
}

// token makes a join token for a host that runs workload shop/cart.
func (p *process) token(host string, direct bool) svid.JoinToken {
	p.t.Helper()
	in, out := TokenRequest{Host: host, Workloads: []string{"shop/cart"}, Direct: direct}, Token{}
	if err := p.client.Do(p.t.Context(), http.MethodPost, "/v1/tokens", in, &out); err != nil {
		p.t.Fatal(err)
	}
	token, err := svid.ParseJoinToken(out.Token)
	if err != nil {
		p.t.Fatal(err)
	}
	return token
}

// join is what an agent does with a token, until it is a host.
func (p *process) join(ctx context.Context, token svid.JoinToken) (*svid.Identity, error) {
	key, err := svid.NewKey()
	if err != nil {
		return nil, err
	}
	client, err := svid.NewClient(svid.ClientConfig{Servers: token.Servers})
	if err != nil {
		return nil, err
	}
	for wait := 200 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		id, err := client.Join(ctx, token, key)
		if err == nil || ctx.Err() != nil {
			return id, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
	}
}
