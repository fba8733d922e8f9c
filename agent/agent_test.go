package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/agent/health"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pki/svid"
)

// TestLifeOfAHost goes through the states of a host, except its removal.
func TestLifeOfAHost(t *testing.T) {
	t.Parallel()
	cp := newPlane(t, 0)
	port := envoytest.FreePorts(t, 1)[0]
	cp.set(port)
	m := newMachine(t, cp.token("orders-1", "shop/orders"))
	web := cp.caller(port)
	isLive := func(streams int) {
		t.Helper()
		envoytest.Eventually(t, deadline, func() error {
			if report, n, _ := cp.last(); n < streams || report != "live" {
				return fmt.Errorf("stream %d, last report %q", n, report)
			}
			return nil
		})
	}

	m.start()
	envoytest.Eventually(t, deadline, web.call)
	isLive(1)
	envoytest.Eventually(t, deadline, func() error {
		// Before that a kill would cost what was accepted last.
		b, err := os.ReadFile(filepath.Join(m.set.StateDir, "accepted.xds"))
		if err == nil && !bytes.Contains(b, []byte("sds-grpc")) {
			err = errors.New("the accepted listener is not on disk")
		}
		return err
	})

	// The agent is killed: Envoy goes on, and the agent that returns, without the
	// token, takes it over.
	pid := m.envoyPID()
	stop := web.load()
	m.kill()
	m.set.Token = ""
	_, _, before := cp.last()
	m.start()
	isLive(2)
	calls, failed := stop()
	if len(failed) > 0 || calls < 3 {
		t.Errorf("%d of %d requests failed while the agent was killed and returned, the first: %v", len(failed), calls, failed)
	}
	if got := m.envoyPID(); got != pid || !running(pid) {
		t.Errorf("envoy is %d, was %d", got, pid)
	}
	if _, _, sent := cp.last(); sent != before {
		t.Errorf("%d resources were sent to an agent that has them", sent-before)
	}

	// Envoy is killed: back at once.
	began := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, deadline, web.call)
	// The promise is a second; the machine that tests has other things to do.
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("envoy was back after %s", took)
	}

	// The control plane is away, and agent and Envoy are killed: the host serves
	// again by itself.
	cp.kill()
	pid = m.envoyPID()
	m.kill()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, deadline, func() error {
		if running(pid) {
			return errors.New("envoy still runs")
		}
		return nil
	})
	m.start()
	envoytest.Eventually(t, deadline, web.call)
	cp.start()
	isLive(3)

	// A stop ends both, and peers learn of it before.
	pid = m.envoyPID()
	m.stop()
	if running(pid) {
		t.Error("envoy outlived a stop")
	}
	if report, _, _ := cp.last(); report != "absent" {
		t.Errorf("the last report is %q", report)
	}
}

// TestRotation has certificates of the shortest life, under load.
func TestRotation(t *testing.T) {
	t.Parallel()
	cp := newPlane(t, 10*time.Second)
	port := envoytest.FreePorts(t, 1)[0]
	cp.set(port)
	m := newMachine(t, cp.token("orders-1", "shop/orders"))
	web := cp.caller(port)
	m.start()
	envoytest.Eventually(t, deadline, web.call)
	stop := web.load()
	seen := map[string]bool{}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		serial, err := web.serial()
		if err != nil {
			return err
		}
		if seen[serial] = true; len(seen) < 4 {
			return fmt.Errorf("%d certificates", len(seen))
		}
		return nil
	})
	calls, failed := stop()
	if len(failed) > 0 || calls < 20 { // a busy machine makes few in that time
		t.Errorf("%d of %d requests failed, the first: %v", len(failed), calls, failed)
	}
	if _, streams, sent := cp.last(); streams < 2 || sent != 1 {
		t.Errorf("%d streams, %d resources sent: streams must end before their certificate, and nothing is sent twice", streams, sent)
	}
	m.stop()
}

// agentHere runs an agent in this process until it is live.
func agentHere(t *testing.T, c Config) *Agent {
	t.Helper()
	a := runHere(t, c)
	envoytest.Eventually(t, deadline, func() error {
		if why := a.NotReady(t.Context()); len(why) > 0 {
			return errors.New(strings.Join(why, "; "))
		}
		return nil
	})
	return a
}

// runHere runs an agent in this process, which need not become ready. It fails the test if the
// agent ends before the test.
func runHere(t *testing.T, c Config) *Agent {
	t.Helper()
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		early := len(done) > 0
		cancel()
		if err := <-done; err != nil || early {
			t.Errorf("the agent ended, before the test: %v: %v", early, err)
		}
	})
	return a
}

func TestStatusAndProbe(t *testing.T) {
	t.Parallel()
	cp := newPlane(t, 0)
	port := envoytest.FreePorts(t, 1)[0]
	cp.set(port)
	m := newMachine(t, cp.token("orders-1", "shop/orders", "shop/other"))
	var lc net.ListenConfig
	app, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := m.set.config(&bytes.Buffer{})
	c.StatsPort, c.HealthPort = 0, 0
	c.Workload = svid.Pair{Namespace: "shop", ServiceAccount: "orders"}
	tcp, ok := app.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal("no TCP address")
	}
	c.Probe = &health.Probe{Period: 50 * time.Millisecond, TCP: &health.TCPSocket{Port: tcp.Port}}
	a := agentHere(t, c)
	envoytest.Eventually(t, deadline, cp.caller(port).call)
	s := a.Status()
	if s.Host != "orders-1" || s.Workload != "shop/orders" || len(s.Identities) != 2 || s.Envoy.PID == 0 || s.EnvoyVersion != envoytest.Default {
		t.Errorf("status %+v", s)
	}
	if !s.Ports.Stats.IsValid() || !s.Ports.Health.IsValid() {
		t.Errorf("ports %+v", s.Ports)
	}
	dump, err := a.ConfigDump(t.Context())
	if err != nil || !bytes.Contains(dump, []byte("ROOTCA")) || bytes.Contains(dump, []byte("PRIVATE")) {
		t.Errorf("config dump %v: %.300s", err, dump)
	}
	reported := func(what string) {
		t.Helper()
		envoytest.Eventually(t, deadline, func() error {
			cp.mu.Lock()
			defer cp.mu.Unlock()
			for _, r := range cp.reports {
				if strings.HasPrefix(r, "health:") && strings.Contains(r, what) && (what != "") == (r != "health:") {
					return nil
				}
			}
			return fmt.Errorf("reports %q", cp.reports)
		})
	}
	reported("")
	if err := app.Close(); err != nil {
		t.Fatal(err)
	}
	reported("connecting to the application")

	// The state directory has one agent only, and so has the run directory, by which Envoy is found.
	for flag, dir := range map[string]*string{"--run-dir": &c.StateDir, "--state-dir": &c.RunDir} {
		was := *dir
		*dir = envoytest.ShortDir(t)
		second, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another agent") || !strings.Contains(err.Error(), flag) {
			t.Errorf("a second agent: %v, want that it needs another %s", err, flag)
		}
		*dir = was
	}
}

// TestInvalidStarts has common mistakes of a first start.
func TestInvalidStarts(t *testing.T) {
	t.Parallel()
	cp, other := newPlane(t, 0), newPlane(t, 0)
	for name, c := range map[string]struct {
		spoil func(*Config, *machine)
		says  string
	}{
		"no_token":       {func(c *Config, _ *machine) { c.Token = "" }, "start once with --token"},
		"no_such_token":  {func(c *Config, _ *machine) { c.Token = "abc" }, "not a join token"},
		"which_workload": {func(c *Config, _ *machine) { c.Token = cp.token("two", "shop/a", "shop/b") }, "choose one with --workload: shop/a, shop/b"},
		"wrong_workload": {func(c *Config, _ *machine) { c.Workload = svid.Pair{Namespace: "shop", ServiceAccount: "x"} }, `only shop/orders`},
		"long_directory": {func(c *Config, _ *machine) { c.RunDir = "/" + strings.Repeat("a", 100) }, "--run-dir"},
		"no_envoy":       {func(c *Config, _ *machine) { c.Envoy = "/nonexistent" }, "no usable Envoy"},
		"port_taken": {func(c *Config, _ *machine) {
			_, p, err := net.SplitHostPort(cp.addr)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := fmt.Sscan(p, &c.StatsPort); err != nil {
				t.Fatal(err)
			}
		}, "listens there: stop it, or choose another address"},
		"used_token": {func(c *Config, _ *machine) {
			use := newMachine(t, c.Token).set.config(&bytes.Buffer{})
			agentHere(t, use)
		}, "make a new one"},
		"another_authority": {func(c *Config, _ *machine) { c.Servers = []string{other.addr} }, "token was not sent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, cp.token(strings.ReplaceAll(name, "_", "-"), "shop/orders"))
			cfg := m.set.config(&bytes.Buffer{})
			if name == "used_token" {
				cp.set(envoytest.FreePorts(t, 1)[0])
			}
			c.spoil(&cfg, m)
			a, err := New(cfg)
			if err == nil {
				err = a.Run(t.Context())
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v\nwant %q", err, c.says)
			}
		})
	}
}

// TestAnotherHostsToken: a token does not turn one host into another.
func TestAnotherHostsToken(t *testing.T) {
	t.Parallel()
	c := Config{StateDir: t.TempDir()}
	known := &enrollment{Host: "a", Pairs: []string{"shop/orders"}, Servers: []string{"x:1"}}
	if _, err := mergeEnrollment(known, &svid.JoinToken{Host: "b"}, c); err == nil || !strings.Contains(err.Error(), "its own --state-dir") {
		t.Errorf("combine = %v", err)
	}
	m, err := mergeEnrollment(known, nil, c)
	if err != nil || m.Servers[0] != "x:1" {
		t.Errorf("combine = %+v, %v", m, err)
	}
}

// TestTrusts distinguishes a token of another authority from one of the identity's own.
func TestTrusts(t *testing.T) {
	t.Parallel()
	id := &svid.Identity{Bundle: x509bundle.FromX509Authorities(spiffeid.RequireTrustDomainFromString("mesh.test"), []*x509.Certificate{{RawSubjectPublicKeyInfo: []byte("own")}})}
	if !trusts(id, sha256.Sum256([]byte("own"))) || trusts(id, sha256.Sum256([]byte("other"))) {
		t.Error("the authority of a token is not recognised")
	}
}

// TestNothingSecretOnDisk reads every file that a running host has.
func TestNothingSecretOnDisk(t *testing.T) {
	t.Parallel()
	cp := newPlane(t, 0)
	cp.set(envoytest.FreePorts(t, 1)[0])
	m := newMachine(t, cp.token("orders-1", "shop/orders"))
	log := &syncBuffer{}
	a := agentHere(t, m.set.config(log))
	_, key, err := a.workload.Load().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	_, hostKey, err := a.host.Load().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	line := func(pem []byte) []byte { return bytes.Split(pem, []byte("\n"))[1] }
	check := func(where string, b []byte) {
		if bytes.Contains(b, line(key)) {
			t.Errorf("the workload's key is in %s", where)
		}
		if bytes.Contains(b, line(hostKey)) && filepath.Base(where) != "host.json" {
			t.Errorf("the host's key is in %s", where)
		}
		if bytes.Contains(b, []byte(m.set.Token)) {
			t.Errorf("the token is in %s", where)
		}
	}
	check("the log", log.bytes())
	found := 0
	for _, dir := range []string{m.set.StateDir, m.set.RunDir} {
		err := filepath.Walk(dir, func(path string, fi os.FileInfo, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // a file that was being written, and has its name now
			}
			if err != nil || !fi.Mode().IsRegular() {
				return err
			}
			found++
			if fi.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s has mode %o", path, fi.Mode().Perm())
			}
			b, err := os.ReadFile(path)
			check(path, b)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 5 {
		t.Errorf("only %d files", found)
	}
}
