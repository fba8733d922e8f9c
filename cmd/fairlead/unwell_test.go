package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// shown is the text of proxy-status.
func shown(t *testing.T, p server.Proxies, s server.Sources) string {
	t.Helper()
	st := status{Proxies: p, sources: s, Unwell: server.Conditions(&p, &s, time.Now())}
	if err := st.choose(nil, false); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := st.write(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestOneParagraphForTheSame: what is so of several proxies is written once, with their names, although
// times differ; what differs is written.
func TestOneParagraphForTheSame(t *testing.T) {
	t.Parallel()
	var p server.Proxies
	for i := range 5 {
		name := fmt.Sprintf("web-%d", i)
		p.Proxies = append(p.Proxies, server.Proxy{
			Name: name + ".shop", Host: name, Connected: true, Health: "unhealthy", HealthReason: "http probe: 503",
			Types: []server.Type{{Type: "listener", Pending: true}}, Behind: time.Now().Add(-time.Duration(40+i) * time.Second),
		})
	}
	p.Proxies[4].HealthReason = "connection refused"
	out := shown(t, p, server.Sources{})
	for _, once := range []string{
		"unhealthy: web-0.shop is unhealthy and gets no traffic: http probe: 503\n      the same for web-1.shop, web-2.shop, web-3.shop\n      repair",
		"unhealthy: web-4.shop is unhealthy and gets no traffic: connection refused\n      repair",
		"not-synced: web-0.shop is not synced for 40s: it has not answered listener\n      the same for web-1.shop, web-2.shop, web-3.shop, web-4.shop\n      look",
		"UNWELL (10)\n",
	} {
		if strings.Count(out, once) != 1 {
			t.Errorf("not once %q:\n%s", once, out)
		}
	}
	if n := strings.Count(out, "  unhealthy: ") + strings.Count(out, "  not-synced: "); n != 3 {
		t.Errorf("%d paragraphs:\n%s", n, out)
	}
	// A name within another name is no name.
	p = server.Proxies{Absent: []server.AbsentHost{{Name: "web", Since: time.Now()}, {Name: "web-2", Since: time.Now()}}}
	if out := shown(t, p, server.Sources{}); strings.Count(out, "host-absent: ") != 1 || !strings.Contains(out, "\n      the same for web-2\n") {
		t.Errorf("two hosts that left:\n%s", out)
	}
}

// TestNothingSyncedIsNotSynced: no column says SYNCED of a proxy of which a line says that it is not.
func TestNothingSyncedIsNotSynced(t *testing.T) {
	t.Parallel()
	all := []server.Type{{Type: "cluster"}, {Type: "endpoint"}, {Type: "listener"}, {Type: "route"}, {Type: "extension"}}
	for name, c := range map[string]struct {
		proxy   server.Proxy
		synced  bool
		says    string
		without string
	}{
		"newer":         {server.Proxy{Types: all}, false, "web.shop, db.shop: a newer configuration is on its way; ask again", "not synced"},
		"gone":          {server.Proxy{Types: all, Stale: "its workload is no longer in the mesh"}, false, "web.shop is stale: its workload", "not synced"},
		"no_listeners":  {server.Proxy{Types: all[:2]}, true, "web.shop, db.shop: Envoy has not asked for listeners yet, so it serves nothing", "not synced"},
		"long_so":       {server.Proxy{Types: all[:2], Behind: time.Now().Add(-time.Minute)}, true, "web.shop serves nothing for 1m0s: it has not asked for listeners yet", "not synced"},
		"synced":        {server.Proxy{Types: all, Synced: true}, true, "SYNCED", "on its way"},
		"hosts_pending": {server.Proxy{Types: []server.Type{{Type: "listener"}, {Type: "virtual-host", Pending: true}}}, true, "STALE", "on its way"},
	} {
		x := c.proxy
		x.Name, x.Connected, x.Health = "web.shop", true, "healthy"
		if x.Behind.IsZero() {
			x.Behind = time.Now()
		}
		y := x
		y.Name = "db.shop"
		out := shown(t, server.Proxies{Proxies: []server.Proxy{x, y}}, server.Sources{})
		if strings.Contains(out, "SYNCED") != c.synced || !strings.Contains(out, c.says) || strings.Contains(out, c.without) {
			t.Errorf("%s: want %q, not %q, and SYNCED %t:\n%s", name, c.says, c.without, c.synced, out)
		}
	}
}

// TestNothingLastsZeroSeconds: what has just begun is not "for 0s".
func TestNothingLastsZeroSeconds(t *testing.T) {
	t.Parallel()
	held := registry.Held{Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "shop", Name: "a"}, Since: time.Now()}
	s := server.Sources{Registry: registry.Status{Sources: []registry.SourceStatus{{Name: "files", HeldCount: 1, Held: []registry.Held{held}}}}}
	p := server.Proxies{Proxies: []server.Proxy{{Name: "web.shop", Host: "web", Absent: true, Since: time.Now()}}, Absent: []server.AbsentHost{{Name: "web", Since: time.Now()}}}
	out := shown(t, p, s)
	if strings.Contains(out, "for 0s") || strings.Contains(out, "left 0s") || strings.Contains(out, "back 0s") || strings.Count(out, "for less than 1s (") != 2 {
		t.Errorf("something lasts 0s:\n%s", out)
	}
}

// TestOneHostHidesNobody: of many conditions and faults, hosts, namespaces and sources take turns.
func TestOneHostHidesNobody(t *testing.T) {
	t.Parallel()
	var list []server.Condition
	for i := range 100 {
		list = append(list, server.Condition{Reason: "not-synced", Subject: fmt.Sprint("x", i), Host: "liar", Text: fmt.Sprint("reason number ", strings.Repeat("a", i+1)), Action: "look"})
	}
	list = append(list, server.Condition{Reason: "not-synced", Subject: "web.shop", Host: "web", Text: "web.shop is not synced", Action: "look"})
	for i := range 100 {
		list = append(list, server.Condition{Reason: "no-endpoints", Subject: fmt.Sprint("VirtualService evil/", i), Text: strings.Repeat("b", i+1), Action: "look"})
	}
	list = append(list, server.Condition{Reason: "no-endpoints", Subject: "VirtualService shop/orders", Text: "orders has no endpoints", Action: "look"})
	var b strings.Builder
	if err := writeUnwell(&b, list); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"web.shop is not synced", "orders has no endpoints", "… and 91 more"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, b.String())
		}
	}
	fault := func(n int, text string) (out []manifest.Fault) {
		for range n {
			out = append(out, manifest.Fault{Severity: manifest.Error, Message: text})
		}
		return out
	}
	b.Reset()
	writeSources(&b, &server.Sources{Files: []files.Status{{Source: "evil", Faults: fault(100, "noise")}, {Source: "shop", Faults: fault(1, "a fault of shop")}}})
	if out := b.String(); !strings.Contains(out, "a fault of shop") || !strings.Contains(out, "… and 61 more") {
		t.Errorf("%s", out)
	}
}

// TestOthersAreCountedOnce: the row that only counts others may be shown before the last one of a kind.
func TestOthersAreCountedOnce(t *testing.T) {
	t.Parallel()
	for subject, want := range map[string]string{
		"mesh":                    "… and 11 more, which -o json has\n", // it has its turn, and 9 of 20 are shown
		"VirtualService evil/sum": "… and 290 more; -o json has 10 of them\n",
	} {
		var list []server.Condition
		for i := range 20 {
			list = append(list, server.Condition{Reason: "no-endpoints", Subject: fmt.Sprint("VirtualService evil/", i), Text: strings.Repeat("b", i+1), Action: "look"})
		}
		list = append(list, server.Condition{Reason: "no-endpoints", Subject: subject, Text: "there are 280 others of this kind", Action: "correct those above", Others: 280})
		var b strings.Builder
		if err := writeUnwell(&b, list); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), "UNWELL (300)\n") || !strings.Contains(b.String(), want) {
			t.Errorf("%s: it does not say %q:\n%s", subject, want, b.String())
		}
	}
}
