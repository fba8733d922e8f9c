package clocks

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

const (
	day = 24 * time.Hour
	// life of certificates. A clock is wrong for less than half of it.
	life = 30 * time.Second
	rate = 100 // requests a second each, by two loads
)

type shop struct {
	*meshtest.Mesh
	t      *testing.T
	hosts  []meshtest.Host
	agents map[string]*meshtest.Process
	url    string
}

// newShop starts the quickstart's mesh.
func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{
		Mesh: meshtest.NewWithClocks(t, "examples/quickstart/mesh", map[string]int{
			"web": 18080, "orders-v1": 18081, "orders-v2": 18082, "inventory": 18083,
		}),
		t: t, agents: map[string]*meshtest.Process{},
	}
	host := func(name, account string, address int, app ...string) meshtest.Host {
		return meshtest.Host{Name: name, Workload: "shop/" + account, Address: address, App: app, Agent: []string{"--drain-time", "1s"}}
	}
	s.hosts = []meshtest.Host{
		host("inventory", "inventory", 14, "--protocol", "grpc"),
		host("orders-v1", "orders", 12, "--next", "grpc://127.0.0.12:9090", "--next-host", "inventory.shop.internal"),
		host("orders-v2", "orders", 13, "--next", "grpc://127.0.0.13:9090", "--next-host", "inventory.shop.internal"),
		host("web", "web", 11, "--next", "http://127.0.0.11:9080", "--next-host", "orders.shop.internal"),
	}
	// A connection between Envoys is used for a few seconds, so that there are new ones
	// all the time beside those that are kept. Clients leave it a tenth sooner: that
	// has to be longer than a busy machine keeps an Envoy waiting.
	s.StartServer("--certificate-ttl", life.String(), "--max-connection-age", "10s")
	for _, h := range s.hosts {
		_, s.agents[h.Name] = s.StartHost(h)
	}
	s.AwaitLive("inventory", "orders-v1", "orders-v2", "web")
	s.url = fmt.Sprintf("http://%s/", net.JoinHostPort(s.Address(11), "8080"))
	meshtest.NewClient(t, "").AwaitAnswers(t, s.url, "orders-v1", "orders-v2", "inventory", "web")
	return s
}

// sound is nil if a host has certificates that are valid now and were signed after
// since, its agent knows nothing against its clock, and its stream is open.
func (s *shop) sound(host string, since time.Time) error {
	out, err := exec.CommandContext(s.t.Context(), "curl", "-s", "--max-time", "5", "--unix-socket",
		filepath.Join(s.RunDir(host), "admin.sock"), "http://agent/v1/status").Output()
	if err != nil {
		return err
	}
	var st struct {
		Identities []struct {
			ID        string    `json:"spiffe_id"`
			NotBefore time.Time `json:"not_before"`
			NotAfter  time.Time `json:"not_after"`
		} `json:"identities"`
		ClockDoubt string `json:"clock_doubt"`
		Relay      struct {
			Upstream struct {
				Server string `json:"server"`
			} `json:"upstream"`
		} `json:"relay"`
	}
	if err := json.Unmarshal(out, &st); err != nil {
		return fmt.Errorf("status of %s: %w: %s", host, err, out)
	}
	now := time.Now()
	for _, id := range st.Identities {
		if now.Before(id.NotBefore) || now.After(id.NotAfter) || id.NotBefore.Before(since.Add(-life/10-time.Second)) {
			return fmt.Errorf("%s has a certificate of %s from %s to %s, at %s", host, id.ID, id.NotBefore, id.NotAfter, now.UTC())
		}
	}
	if len(st.Identities) != 2 || st.ClockDoubt != "" || st.Relay.Upstream.Server == "" {
		return fmt.Errorf("status of %s: %s", host, out)
	}
	return nil
}

// wrongClock is a process whose clock is set.
type wrongClock struct {
	process string
	off     time.Duration
	restart bool // with the wrong clock, as a machine that boots
	// log is what an agent says when the clock has had its effect: this one, or any
	// if the clock is the server's.
	log string
}

// TestWrongClocks sets one clock after another, under load. No request fails, and all
// is well soon after the clocks are right, without anybody's help.
func TestWrongClocks(t *testing.T) {
	envoytest.Binary(t)
	s := newShop(t)
	const (
		early  = "is not valid by this host's clock"
		differ = "clock differs from the control plane's"
	)
	for _, c := range []struct {
		name  string
		wrong []wrongClock
	}{
		{"server-a-day-ahead", []wrongClock{{process: "server", off: day, log: early}}},
		{"server-a-day-behind", []wrongClock{{process: "server", off: -day, log: early}}},
		{"hosts-days-and-decades-off", []wrongClock{
			{process: "orders-v1", off: day, log: "renewing a certificate failed"},
			{process: "orders-v2", off: -day, log: differ},
			{process: "inventory", off: -56 * 365 * day, restart: true, log: differ},
		}},
		{"host-within-the-backdating", []wrongClock{{process: "web", off: -life / 20, log: "workload identity renewed"}}},
	} {
		t.Run(c.name, func(t *testing.T) { s.wrong(t, c.wrong) })
	}
}

func (s *shop) wrong(t *testing.T, clocks []wrongClock) {
	t.Helper()
	client := meshtest.NewClient(t, "")
	loads := []*meshtest.Load{client.StartLoad(t, s.url, rate), client.Fresh().StartLoad(t, s.url, rate)}
	defer func() {
		for i, l := range loads {
			r := l.Stop()
			t.Logf("%s connections: %d requests, %d failed", []string{"kept", "new"}[i], r.Good+r.Failed, r.Failed)
			if r.Failed > 0 {
				t.Errorf("%d of %d requests failed, from %s to %s: %v", r.Failed, r.Good+r.Failed,
					r.FirstFailure.Format(time.TimeOnly+".000"), r.LastFailure.Format(time.TimeOnly+".000"), r.Errors)
			}
		}
	}()
	var felt []func() error
	for _, c := range clocks {
		felt = append(felt, s.set(c))
	}
	envoytest.Eventually(t, life, func() error {
		for _, f := range felt {
			if err := f(); err != nil {
				return err
			}
		}
		return nil
	})
	loads[0].Wait(t, 2*rate)
	for _, c := range clocks {
		s.SetClock(c.process, 0)
	}
	right := time.Now()
	var since time.Time
	if clocks[0].process == "server" { // all have certificates with wrong times
		since = right
	}
	envoytest.Eventually(t, life/2, func() error {
		for _, h := range s.hosts {
			if err := s.sound(h.Name, since); err != nil {
				return err
			}
		}
		return nil
	})
	t.Logf("well again after %s", time.Since(right).Round(100*time.Millisecond))
	loads[0].Wait(t, rate)
}

// set sets a clock; felt is nil once that has had its effect.
func (s *shop) set(c wrongClock) (felt func() error) {
	s.t.Helper()
	said := map[string]int{}
	for name, p := range s.agents {
		said[name] = strings.Count(p.Log(), c.log)
	}
	if c.restart {
		s.agents[c.process].Kill()
		said[c.process] = 0
	}
	s.SetClock(c.process, c.off)
	if c.restart {
		i := slices.IndexFunc(s.hosts, func(h meshtest.Host) bool { return h.Name == c.process })
		s.agents[c.process] = s.StartAgent(s.hosts[i], "")
	}
	return func() error {
		for name, p := range s.agents {
			if (c.process == "server" || name == c.process) && strings.Count(p.Log(), c.log) > said[name] {
				return nil
			}
		}
		return fmt.Errorf("no agent of %q says %q", c.process, c.log)
	}
}
