package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pki/attest/jointoken"
	"github.com/fairlead/fairlead/pki/svid"
)

// joined is a host that has joined with the token in a file, and is running.
type joined struct {
	t    *testing.T
	cp   *plane
	m    *machine
	web  *caller
	path string // of the token
	cfg  Config

	agent *Agent
	end   func() // stops the agent and leaves Envoy to the next one
	log   *syncBuffer
}

func newJoined(t *testing.T) *joined {
	t.Helper()
	cp := newPlane(t, 0)
	port := envoytest.FreePorts(t, 1)[0]
	cp.set(port)
	j := &joined{t: t, cp: cp, m: newMachine(t, ""), web: cp.caller(port), path: filepath.Join(t.TempDir(), "token"), log: &syncBuffer{}}
	j.give(cp.token("orders-1", "shop/orders"))
	j.cfg = j.m.set.config(j.log)
	j.cfg.LeaveRunning = true
	j.cfg.ReadToken = func() (string, error) {
		b, err := os.ReadFile(j.path)
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return string(b), err
	}
	j.start()
	envoytest.Eventually(t, deadline, j.web.call)
	j.live()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", j.log.bytes())
		}
	})
	return j
}

// give writes a token into the file.
func (j *joined) give(token string) {
	j.t.Helper()
	if err := os.WriteFile(j.path+".new", []byte(token+"\n"), 0o600); err != nil {
		j.t.Fatal(err)
	}
	if err := os.Rename(j.path+".new", j.path); err != nil {
		j.t.Fatal(err)
	}
}

func (j *joined) start() {
	j.t.Helper()
	a, err := New(j.cfg)
	if err != nil {
		j.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(j.t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	ended := false
	j.agent = a
	j.end = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			j.t.Error(err)
		}
	}
	j.t.Cleanup(j.end)
	envoytest.Eventually(j.t, deadline, func() error {
		select {
		case err := <-done:
			done <- err
			j.t.Fatalf("the agent ended: %v\n%s", err, j.log.bytes())
		default:
		}
		if why := a.NotReady(j.t.Context()); len(why) > 0 {
			return errors.New(strings.Join(why, "; "))
		}
		return nil
	})
}

// restart stops the agent, and starts it again beside the Envoy that keeps running.
func (j *joined) restart() {
	j.t.Helper()
	j.end()
	j.start()
}

// live waits until the relay has a server.
func (j *joined) live() {
	j.t.Helper()
	envoytest.Eventually(j.t, deadline, func() error {
		if !j.agent.connected() {
			return fmt.Errorf("not connected: %+v", j.agent.Status().Relay)
		}
		return nil
	})
}

// token waits until the join token is in a state.
func (j *joined) token(want TokenState, reason string) {
	j.t.Helper()
	envoytest.Eventually(j.t, deadline, func() error {
		s := j.agent.Status().JoinToken
		if s == nil || s.State != want || !strings.Contains(s.Reason, reason) {
			return fmt.Errorf("the join token is %+v, and not %s because of %q", s, want, reason)
		}
		return nil
	})
}

// unharmed fails the test if a request failed, or Envoy was restarted.
func unharmed(t *testing.T, j *joined, pid int, stop func() (int, []error)) {
	t.Helper()
	calls, failed := stop()
	if len(failed) > 0 || calls == 0 {
		t.Errorf("%d of %d requests failed, the first: %v", len(failed), calls, failed)
	}
	if now := j.m.envoyPID(); now != pid || !running(pid) {
		t.Errorf("envoy is %d, was %d", now, pid)
	}
}

func replacing() jointoken.Grant { return jointoken.Grant{Host: "orders-1", Replace: true} }

// TestTokenForARejectedHost gives a running agent a token after the control plane has lost the
// host: the file is enough.
func TestTokenForARejectedHost(t *testing.T) {
	t.Parallel()
	j := newJoined(t)
	pid, stop := j.m.envoyPID(), j.web.load()
	if err := j.cp.hosts.Remove("orders-1"); err != nil {
		t.Fatal(err)
	}
	// The control plane rejects its certificate, and the token that it joined with.
	envoytest.Eventually(t, deadline, func() error {
		if s := j.agent.Status(); !strings.Contains(s.LastError, svid.ErrRefused.Error()) {
			return fmt.Errorf("the last error is %q", s.LastError)
		}
		return nil
	})
	j.token(TokenRefused, "fairlead token create --host orders-1")
	j.give(j.cp.token("orders-1", "shop/orders"))
	j.token(TokenRedeemed, "")
	j.live()
	if s := j.agent.Status(); s.LastError != "" {
		t.Errorf("the last error is %q", s.LastError)
	}
	if h := j.cp.hosts.List(); len(h) != 1 || h[0].Name != "orders-1" {
		t.Errorf("hosts: %+v", h)
	}
	unharmed(t, j, pid, stop)
	// The token stays where it is.
	pid, stop = j.m.envoyPID(), j.web.load()
	j.restart()
	j.live()
	j.token(TokenUnused, "")
	unharmed(t, j, pid, stop)
}

// TestTokenThatAddsAWorkload: a running agent redeems a token with another entitlement; Envoy
// stays the workload that it is.
func TestTokenThatAddsAWorkload(t *testing.T) {
	t.Parallel()
	j := newJoined(t)
	pid, stop := j.m.envoyPID(), j.web.load()
	j.give(j.cp.grant(replacing(), 0, "shop/orders", "shop/other"))
	j.token(TokenRedeemed, "")
	envoytest.Eventually(t, deadline, func() error {
		if h := j.cp.hosts.List(); len(h) != 1 || len(h[0].Pairs) != 2 || h[0].Seen.IsZero() {
			return fmt.Errorf("hosts: %+v", h)
		}
		return nil
	})
	j.live()
	unharmed(t, j, pid, stop)
}

// TestUselessTokens: a host keeps its identity, running and after a restart.
func TestUselessTokens(t *testing.T) {
	t.Parallel()
	other := newPlane(t, 0)
	for name, c := range map[string]struct {
		token func(*plane) string
		state TokenState
		says  string
	}{
		"not_needed":        {func(p *plane) string { return p.grant(replacing(), 0, "shop/orders") }, TokenUnused, ""},
		"another_host":      {func(p *plane) string { return p.token("orders-2", "shop/orders") }, TokenUnfit, `the token is for "orders-2"`},
		"another_authority": {func(*plane) string { return other.grant(replacing(), 0, "shop/x") }, TokenUnfit, "another authority"},
		"damaged":           {func(*plane) string { return "fairlead-join-abc" }, TokenUnfit, "join token"},
		"direct": {func(p *plane) string {
			return p.grant(jointoken.Grant{Host: "orders-1", Direct: true, Replace: true}, 0, "shop/orders")
		}, TokenUnfit, "without an agent"},
		"which_workload": {func(p *plane) string { return p.grant(replacing(), 0, "shop/a", "shop/b") }, TokenUnfit, "--workload"},
		"expired":        {func(p *plane) string { return p.grant(replacing(), 2*time.Hour, "shop/z") }, TokenRefused, "make a new one"},
		"withdrawn": {func(p *plane) string {
			g := jointoken.Grant{Host: "gone", Replace: true}
			token := must[svid.JoinToken](p.tb)(svid.ParseJoinToken(p.grant(g, 0, "shop/z")))
			token.Host = "orders-1"
			if err := p.hosts.Remove("gone"); err != nil {
				p.tb.Fatal(err)
			}
			return must[string](p.tb)(token.Encode())
		}, TokenRefused, "make a new one"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJoined(t)
			before := j.cp.hosts.List()
			pid, stop := j.m.envoyPID(), j.web.load()
			j.give(c.token(j.cp))
			j.token(c.state, c.says)
			j.live()
			j.restart()
			j.token(c.state, c.says)
			j.live()
			unharmed(t, j, pid, stop)
			if now := j.cp.hosts.List(); len(now) != 1 || now[0].Binding != before[0].Binding {
				t.Errorf("hosts were %+v and are %+v", before, now)
			}
			if r := j.agent.Remarks(); (c.state == TokenUnused) != (len(r) == 0) {
				t.Errorf("remarks: %q", r)
			}
		})
	}
}

// TestWorkloadIsReplaced changes the workload of a host by a token and a restart. While the
// control plane is unreachable the host keeps its workload, and its Envoy serves.
func TestWorkloadIsReplaced(t *testing.T) {
	t.Parallel()
	j := newJoined(t)
	j.end()
	j.give(j.cp.grant(replacing(), 0, "shop/other"))
	pid, stop := j.m.envoyPID(), j.web.load()
	j.cp.kill()
	j.start()
	j.token(TokenWaits, "")
	if s := j.agent.Status(); s.Workload != "shop/orders" {
		t.Errorf("it is %s with the control plane away", s.Workload)
	}
	unharmed(t, j, pid, stop)
	j.cp.start()
	j.becomes("shop/other")
	// A flag chooses among what the host may be, and one that it may not be does not
	// end what it is.
	j.end()
	j.give(j.cp.grant(replacing(), 0, "shop/other", "shop/third"))
	j.cfg.Workload = svid.Pair{Namespace: "shop", ServiceAccount: "third"}
	j.start()
	j.becomes("shop/third")
	j.restart()
	j.becomes("shop/third")
}

func (j *joined) becomes(workload string) {
	j.t.Helper()
	id := strings.Replace(workload, "/", "/sa/", 1)
	envoytest.Eventually(j.t, 2*deadline, func() error {
		s := j.agent.Status()
		if s.Workload != workload || s.Envoy.PID == 0 || !j.agent.connected() {
			return fmt.Errorf("it is %s, Envoy %d", s.Workload, s.Envoy.PID)
		}
		if !slices.ContainsFunc(s.Identities, func(i IdentityStatus) bool { return strings.HasSuffix(i.ID, id) }) {
			return fmt.Errorf("identities %+v", s.Identities)
		}
		if why := j.agent.NotReady(j.t.Context()); len(why) > 0 {
			return errors.New(strings.Join(why, "; "))
		}
		return nil
	})
}

// TestWrongServerIsNotSaved starts a host that has joined with servers that do not answer: the
// next start without them uses the working one.
func TestWrongServerIsNotSaved(t *testing.T) {
	t.Parallel()
	j := newJoined(t)
	kept := func() []string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(j.cfg.StateDir, enrollmentFile))
		var m enrollment
		if err := errors.Join(err, json.Unmarshal(b, &m)); err != nil {
			t.Fatal(err)
		}
		return m.Servers
	}
	good := []string{j.cp.addr}
	j.end()
	j.cfg.Servers = []string{"127.0.0.1:1"}
	j.start()
	j.end()
	if got := kept(); !slices.Equal(got, good) {
		t.Errorf("kept are %v", got)
	}
	j.cfg.Servers = nil
	j.start()
	j.live()
	// Those that answer are kept, with the ones beside them.
	j.end()
	j.cfg.Servers = []string{"127.0.0.1:1", j.cp.addr}
	j.start()
	j.live()
	envoytest.Eventually(t, deadline, func() error {
		if got := kept(); !slices.Equal(got, j.cfg.Servers) {
			return fmt.Errorf("kept are %v", got)
		}
		return nil
	})
}
