package server

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/registry/agents"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestAbsentHosts: a host on record is absent when it has not come back within the time after
// the start, or has left; not before hosts were let in, and not while one stream is open.
func TestAbsentHosts(t *testing.T) {
	t.Parallel()
	start := time.Now()
	long := start.Add(-time.Hour)
	host := func(joined time.Time, direct bool) []attest.Host {
		return []attest.Host{{Name: "web", Joined: joined, Direct: direct, Pairs: []profile.Pair{{Namespace: "shop", ServiceAccount: "cart"}}}}
	}
	open := func(p *presence, streams ...uint64) {
		for _, n := range streams {
			if err := p.StreamOpened(n, mesh.Claim{Host: "web", ServiceAccount: mesh.ServiceAccount{Namespace: "shop", Name: "cart"}, Address: victim, Workload: fmt.Sprint("cart-", n)}, nil); err != nil {
				t.Error(err)
			}
		}
	}
	begin := func(p *presence) { p.begin(start) }
	for name, c := range map[string]struct {
		host []attest.Host
		do   func(p *presence)
		// after is how long after the start it is absent, and not a second before; 0 means never.
		after     time.Duration
		never     bool
		workloads string
	}{
		"not_back":         {host(long, false), begin, time.Minute, true, "[shop/cart-9 at " + victim + "]"},
		"nobody_is_let_in": {host(long, false), func(*presence) {}, 0, false, ""},
		"just_joined":      {host(start.Add(30*time.Second), false), begin, 90 * time.Second, true, "[shop/cart-9 at " + victim + "]"},
		"joined_tomorrow":  {host(start.Add(24*time.Hour), false), begin, time.Minute, true, "[shop/cart-9 at " + victim + "]"},
		"direct":           {host(long, true), begin, 0, false, ""},
		"connected":        {host(long, false), func(p *presence) { begin(p); open(p, 1) }, 0, false, ""},
		"left":             {host(long, false), func(p *presence) { begin(p); open(p, 1, 2); p.StreamClosed(2); p.StreamClosed(1) }, leftAfter, false, "[shop/cart-9 at " + victim + "]"},
		"one_of_two_left":  {host(long, false), func(p *presence) { begin(p); open(p, 1, 2); p.StreamClosed(1) }, 0, false, ""},
		"back":             {host(long, false), func(p *presence) { begin(p); open(p, 1); p.StreamClosed(1); open(p, 2) }, 0, false, ""},
		"not_on_record":    {nil, func(p *presence) { begin(p); open(p, 1); p.StreamClosed(1) }, 0, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, err := agents.New(agents.Config{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			p := newPresence(source, 0)
			c.do(p)
			p.StreamClosed(77) // was never open
			for _, h := range p.hosts {
				if !h.left.IsZero() {
					h.left = start
				}
			}
			away := []agents.WorkloadStatus{{Host: "web", ServiceAccount: mesh.ServiceAccount{Namespace: "shop", Name: "cart"}, Workload: "cart-9", Address: victim}}
			if c.after == 0 {
				if got := p.absent(c.host, away, start.Add(time.Hour)); len(got) > 0 {
					t.Errorf("absent: %+v", got)
				}
				return
			}
			if got := p.absent(c.host, away, start.Add(c.after-2*time.Second)); len(got) > 0 {
				t.Errorf("absent too early: %+v", got)
			}
			got := p.absent(c.host, away, start.Add(c.after))
			if len(got) != 1 || got[0].Name != "web" || got[0].Never != c.never || fmt.Sprint(got[0].Workloads) != c.workloads || !slices.Equal(got[0].Pairs, []string{"shop/cart"}) {
				t.Errorf("absent: %+v", got)
			}
		})
	}
}

// TestPresenceForgetsRemovedHosts: what is known of hosts is bounded by those on record.
func TestPresenceForgetsRemovedHosts(t *testing.T) {
	t.Parallel()
	source, err := agents.New(agents.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	p := newPresence(source, 0)
	for n := range uint64(100) {
		if err := p.StreamOpened(n+1, mesh.Claim{Host: fmt.Sprint("web-", n), Address: victim, Workload: "one"}, nil); err == nil {
			p.StreamClosed(n + 1)
		}
	}
	p.absent(nil, nil, time.Now())
	if len(p.hosts) > 0 || len(p.streams) > 0 {
		t.Errorf("%d hosts and %d streams are remembered", len(p.hosts), len(p.streams))
	}
}

// TestSettled: only hosts that were let in can come back.
func TestSettled(t *testing.T) {
	t.Parallel()
	p, now := newPresence(nil, time.Minute), time.Now()
	if p.settled(now.Add(time.Hour)) {
		t.Error("settled before hosts were let in")
	}
	p.begin(now)
	if p.settled(now.Add(time.Minute-1)) || !p.settled(now.Add(time.Minute)) {
		t.Error("not settled after exactly --absent-after")
	}
}

// TestDeadWhileServerAway: a host that died while the server was away is found out after
// --absent-after, by name and with the workload that it had.
func TestDeadWhileServerAway(t *testing.T) {
	t.Parallel()
	cfg := config(t, treeOf(t, map[string]string{"mesh.yaml": entry("")}))
	r := start(t, cfg)
	if _, _, err := r.joined("dead", "", nil).claim("one"); err != nil {
		t.Fatal(err)
	}
	r.eventually(func() error {
		if saved, err := (claims{r.cfg.StateDir + "/claims.json"}).LoadClaims(); err != nil || len(saved.Claims) != 1 {
			return fmt.Errorf("%+v, %w", saved, err)
		}
		return nil
	})
	if got := r.absent(time.Now().Add(time.Hour)); len(got) > 0 {
		t.Errorf("absent while connected: %+v", got)
	}
	r.stop()
	cfg.AbsentAfter = time.Millisecond
	r = start(t, cfg)
	r.eventually(func() error {
		got := r.absent(time.Now())
		if len(got) != 1 || got[0].Name != "dead" || !got[0].Never || fmt.Sprint(got[0].Workloads) != "[shop/one at "+victim+"]" {
			return fmt.Errorf("absent: %+v", got)
		}
		if out := r.out.String(); !strings.Contains(out, "hosts on record have not connected since the start") || !strings.Contains(out, "first=dead") {
			return fmt.Errorf("the log does not name it:\n%s", out)
		}
		return nil
	})
}
