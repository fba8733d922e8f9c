package envoys

import (
	"context"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
)

// want compares a request, by the words that mean something.
func want(t *testing.T, got *discovery.DeltaDiscoveryRequest, k Kind, nonce, subscribe, unsubscribe string) {
	t.Helper()
	join := func(names []string) string { return strings.Join(names, " ") }
	a := [4]string{got.GetTypeUrl(), got.GetResponseNonce(), join(got.GetResourceNamesSubscribe()), join(got.GetResourceNamesUnsubscribe())}
	if d := cmp.Diff([4]string{typeURLs[k], nonce, subscribe, unsubscribe}, a); d != "" {
		t.Fatalf("%s\nerror %v", d, got.GetErrorDetail())
	}
	if got.GetErrorDetail() != nil {
		t.Fatalf("refused: %v", got.GetErrorDetail())
	}
}

// warm brings one proxy up: clusters a and b, of which a has endpoints, and a
// listener whose routes travel by virtual host.
func warm(t *testing.T, p *plane) {
	t.Helper()
	first := p.next()
	want(t, first, Clusters, "", "", "")
	if first.GetNode().GetId() != "me" {
		t.Fatalf("node %v", first.GetNode())
	}
	p.send("1", Clusters, nil, cluster("a"), static("b"))
	want(t, p.next(), Endpoints, "", "a", "")
	want(t, p.next(), Clusters, "1", "", "")
	p.silent() // no listener before every cluster is warm
	p.send("2", Endpoints, nil, endpoints("a"))
	want(t, p.next(), Endpoints, "2", "", "")
	want(t, p.next(), Listeners, "", "", "")
	p.send("3", Listeners, nil, listener(t, "l", "8080"))
	want(t, p.next(), Routes, "", "8080", "")
	want(t, p.next(), Listeners, "3", "", "")
	p.send("4", Routes, nil, table("8080", true))
	want(t, p.next(), Routes, "4", "", "")
	want(t, p.next(), Hosts, "", "", "")
	p.send("5", Hosts, nil, virtualHost("8080/x", "x"))
	want(t, p.next(), Hosts, "5", "", "")
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// TestSequence: what is asked for, and when, is as real Envoys ask.
func TestSequence(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	f := newFleet(t, p, 1, nil)
	warm(t, p)
	times, err := f.AwaitReady(within(t), 1, time.Millisecond)
	if err != nil || times.Count != 1 || times.Last == 0 {
		t.Fatalf("%+v, %v", times, err)
	}

	// A second table is asked for, and its hosts are not: the subscription is one.
	p.send("6", Listeners, nil, listener(t, "m", "9090"))
	want(t, p.next(), Routes, "", "9090", "")
	want(t, p.next(), Listeners, "6", "", "")
	p.send("7", Routes, nil, table("9090", true))
	want(t, p.next(), Routes, "7", "", "")
	p.silent()

	// What nothing refers to any more is left.
	p.send("8", Listeners, []string{"m"})
	want(t, p.next(), Routes, "", "", "9090")
	want(t, p.next(), Listeners, "8", "", "")
	p.send("9", Clusters, []string{"a"})
	want(t, p.next(), Endpoints, "", "", "a")
	want(t, p.next(), Clusters, "9", "", "")
	p.send("10", Hosts, []string{"8080/x"})
	want(t, p.next(), Hosts, "10", "", "")
	got := f.Totals()
	if d := cmp.Diff(map[string][2]int{"CDS": {1, 1}, "EDS": {0, 0}, "LDS": {1, 1}, "RDS": {1, 1}, "VHDS": {0, 0}}, got.Held); d != "" {
		t.Error(d)
	}
	if got.Faults+got.Endings != 0 || got.Kinds["CDS"].Messages != 2 || got.Kinds["VHDS"].Removed != 1 {
		t.Errorf("%+v", got)
	}
}

// TestReconnect: a proxy that comes back lists what it has, of every type.
func TestReconnect(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	f := newFleet(t, p, 1, nil)
	warm(t, p)
	f.Close()
	f.Start(t.Context())
	for _, c := range []struct {
		kind      Kind
		subscribe string
		has       map[string]string
	}{
		{Clusters, "", map[string]string{"a": "v1", "b": "v1"}},
		{Endpoints, "a", map[string]string{"a": "v2"}},
		{Listeners, "", map[string]string{"l": "v3"}},
		{Routes, "8080", map[string]string{"8080": "v4"}},
		{Hosts, "", map[string]string{"8080/x": "v5"}},
	} {
		r := p.next()
		want(t, r, c.kind, "", c.subscribe, "")
		if d := cmp.Diff(c.has, r.GetInitialResourceVersions()); d != "" {
			t.Errorf("%s: %s", c.kind, d)
		}
		if (r.GetNode() != nil) != (c.kind == Clusters) {
			t.Errorf("%s: node %v", c.kind, r.GetNode())
		}
	}
	// The same again, and something new.
	p.send("5", Hosts, nil, virtualHost("8080/x", "x"), virtualHost("8080/y", "y"))
	want(t, p.next(), Hosts, "5", "", "")
	if n := f.Totals().Kinds["VHDS"]; n.Repeated != 1 || n.Resources != 3 {
		t.Errorf("%+v", n)
	}
}

// TestRefused: what a real Envoy refuses, or takes and then ignores, is a fault.
func TestRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		older bool
		send  func(p *plane)
	}{
		"old_envoy_vhds": {true, func(p *plane) { p.send("9", Routes, nil, table("8080", true)) }},
		"no_domain":      {false, func(p *plane) { p.send("9", Hosts, nil, virtualHost("8080/z")) }},
		"no_table":       {false, func(p *plane) { p.send("9", Hosts, nil, virtualHost("z", "z")) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t)
			f := newFleet(t, p, 1, func(cfg *Config) { cfg.VHDS = !c.older })
			p.next()
			c.send(p)
			r := p.next()
			if r.GetErrorDetail() == nil || r.GetResponseNonce() != "9" {
				t.Fatalf("accepted: %v", r)
			}
			got := f.Totals()
			if got.Faults != 1 || got.Held["RDS"] != [2]int{} || got.Held["VHDS"] != [2]int{} {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestProbe: only a resource that is new and has the marker counts.
func TestProbe(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	f := newFleet(t, p, 1, nil)
	warm(t, p)
	f.Arm("needle")
	p.send("6", Hosts, nil, virtualHost("8080/y", "hay"))
	want(t, p.next(), Hosts, "6", "", "")
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if times, err := f.AwaitProbe(short, 1); err == nil {
		t.Fatalf("found before it was sent: %+v", times)
	}
	before := time.Now().UnixNano()
	p.send("7", Hosts, nil, virtualHost("8080/y", "needle"))
	times, err := f.AwaitProbe(within(t), 1)
	if err != nil || times.Count != 1 || times.First < before || times.Last > time.Now().UnixNano() {
		t.Fatalf("%+v, %v", times, err)
	}
	f.Arm("other")
	if times, err := f.AwaitProbe(short, 1); err == nil {
		t.Fatalf("found what was not sent: %+v", times)
	}
}

// TestLarge: a message of many frames arrives whole, and so does a request that
// the server's window does not let through at once.
func TestLarge(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	f := newFleet(t, p, 1, nil)
	p.next()
	const n = 5000
	var clusters, assignments []named
	for i := range n {
		name := strings.Repeat("x", 40) + string(rune('a'+i%26)) + strings.Repeat("y", i%7) + time.Duration(i).String()
		clusters, assignments = append(clusters, cluster(name)), append(assignments, endpoints(name))
	}
	p.send("1", Clusters, nil, clusters...)
	if r := p.next(); len(r.GetResourceNamesSubscribe()) != n {
		t.Fatalf("%d names", len(r.GetResourceNamesSubscribe()))
	}
	p.next()
	p.send("2", Endpoints, nil, assignments...)
	p.next()
	want(t, p.next(), Listeners, "", "", "")
	if h := f.Totals().Held; h["CDS"] != [2]int{n, n} || h["EDS"] != [2]int{n, n} {
		t.Errorf("%+v", h)
	}
}

// TestSharedConnection: streams of one connection do not disturb one another.
func TestSharedConnection(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	f := newFleet(t, p, 6, func(cfg *Config) { cfg.PerConn = 3 })
	for range 6 {
		want(t, p.next(), Clusters, "", "", "")
	}
	f.mu.Lock()
	conns := len(f.conns)
	f.mu.Unlock()
	if conns != 2 {
		t.Errorf("%d connections", conns)
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	var at []int64
	for i := range 200 {
		at = append(at, int64(200-i))
	}
	if got := timesOf(at); got != (Times{200, 1, 100, 198, 200}) {
		t.Errorf("%+v", got)
	}
	if got := timesOf([]int64{7}); got != (Times{1, 7, 7, 7, 7}) {
		t.Errorf("%+v", got)
	}
	if got := timesOf(nil); got != (Times{}) {
		t.Errorf("%+v", got)
	}
}
