package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds"
)

func TestTargets(t *testing.T) {
	t.Parallel()
	account := mesh.ServiceAccount{Namespace: "shop", Name: "cart"}
	one := mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: "shop", Name: "one"}
	snap := &mesh.Snapshot{Workloads: []*mesh.Workload{{
		Meta: mesh.Meta{Key: one, Labels: map[string]string{"app": "cart", "version": "v2", "secret": "x"}}, Locality: mesh.Locality{Region: "eu", Zone: "a"},
	}}}
	proxy := func(host, network, address string, change func(*xds.ProxyStatus)) xds.ProxyStatus {
		p := xds.ProxyStatus{Host: host, Name: host + ".shop", Network: network, Address: address, ServiceAccount: account, AgentVersion: "1.0", EnvoyVersion: "1.40.0", Connected: true}
		if change != nil {
			change(&p)
		}
		return p
	}
	left := func(ago time.Duration) func(*xds.ProxyStatus) {
		return func(p *xds.ProxyStatus) { p.Connected, p.Left = false, time.Unix(1000, 0).Add(-ago) }
	}
	proxies := []xds.ProxyStatus{
		proxy("h1", "", "10.0.0.10", func(p *xds.ProxyStatus) { p.Workload = one }),
		proxy("h1-old", "", "10.0.0.10", left(0)),
		proxy("h2-older", "", "10.0.0.9", left(time.Hour)),
		proxy("h2", "", "10.0.0.9", left(time.Minute)),
		proxy("h3", "east", "10.0.0.9", func(p *xds.ProxyStatus) { p.MetricsPort = 41234 }),
		proxy("h4", "", "fd00::1", func(p *xds.ProxyStatus) { p.EnvoyVersion = "\x1b[2J" + strings.Repeat("v", 5000) }),
		proxy("", "", "10.0.0.1", nil),                                                // anonymous, over plaintext
		proxy("h5", "", "0.0.0.0", nil),                                               // no address of one host
		proxy("h6", "", "web.shop", nil),                                              // no IP address
		proxy("h7", "", "10.0.0.2", func(p *xds.ProxyStatus) { p.AgentVersion = "" }), // an Envoy without an agent
	}
	got := targetsOf(proxies, snap)
	base := func(more map[string]string) map[string]string {
		out := map[string]string{labelNamespace: "shop", labelServiceAccount: "cart", labelEnvoyVersion: "1.40.0", labelAgentVersion: "1.0"}
		maps.Copy(out, more)
		return out
	}
	want := []targetGroup{
		{[]string{"10.0.0.9:15020"}, base(map[string]string{labelHost: "h2", labelProxy: "h2.shop", labelConnected: "false"})},
		{[]string{"10.0.0.9:41234"}, base(map[string]string{labelHost: "h3", labelProxy: "h3.shop", labelConnected: "true", labelNetwork: "east"})},
		{[]string{"10.0.0.10:15020"}, base(map[string]string{
			labelHost: "h1", labelProxy: "h1.shop", labelConnected: "true", labelWorkload: "one", labelApp: "cart", labelVersion: "v2", labelLocality: "eu/a/",
		})},
	}
	if len(got) != 4 || got[3].Targets[0] != "[fd00::1]:15020" {
		t.Fatalf("%d targets, want 4: %v", len(got), got)
	}
	if v := got[3].Labels[labelEnvoyVersion]; len(v) > maxLabel || strings.Contains(v, "\x1b") {
		t.Errorf("a label that a host chose is %d bytes long: %q", len(v), v)
	}
	if diff := cmp.Diff(want, got[:3]); diff != "" {
		t.Error(diff)
	}
	slices.Reverse(proxies)
	if diff := cmp.Diff(got, targetsOf(proxies, snap)); diff != "" {
		t.Errorf("the order of proxies counts: %s", diff)
	}
}

// TestTargetsOfAServer: the list has the hosts with a stream, is public only where that was asked
// for, and is not there before hosts had the time to come back.
func TestTargetsOfAServer(t *testing.T) {
	t.Parallel()
	read := func(r *running) (list []targetGroup, err error) {
		return list, r.client.Do(t.Context(), http.MethodGet, "/sd/prometheus", nil, &list)
	}
	public := func(r *running, path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.admin.Address()+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	tree := treeOf(t, map[string]string{"a.yaml": entry("")})

	starting := config(t, tree)
	starting.HTTPAddress = "127.0.0.1:0"
	first := start(t, starting)
	first.eventually(func() error {
		if _, err := read(first); err == nil || !strings.Contains(err.Error(), "hosts are still connecting") {
			return fmt.Errorf("before hosts could come back: %w", errors.Join(err, errors.New("not refused")))
		}
		return nil
	})
	if code, text := public(first, "/sd/prometheus"); code != http.StatusNotFound {
		t.Errorf("everybody sees the list: %d %s", code, text)
	}

	cfg := config(t, tree)
	cfg.HTTPAddress, cfg.PrometheusSD, cfg.AbsentAfter = "127.0.0.1:0", true, time.Millisecond
	cfg.FileSD = filepath.Join(t.TempDir(), "fairlead.json")
	r := start(t, cfg)
	if _, _, err := r.joined("one", "", nil).claim("one"); err != nil {
		t.Fatal(err)
	}
	var file []targetGroup
	r.eventually(func() error {
		b, err := os.ReadFile(cfg.FileSD)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(b, &file); err != nil {
			return err
		}
		if len(file) == 0 {
			return errors.New("no target")
		}
		return nil
	})
	want := []targetGroup{{[]string{victim + ":15020"}, map[string]string{
		labelHost: "one", labelProxy: "one.shop", labelNamespace: "shop", labelServiceAccount: "cart", labelWorkload: "one", labelApp: "cart",
		labelAgentVersion: "1.0", labelEnvoyVersion: "unknown", labelConnected: "true",
	}}}
	if diff := cmp.Diff(want, file); diff != "" {
		t.Error(diff)
	}
	list, err := read(r)
	if diff := cmp.Diff(want, list); diff != "" || err != nil {
		t.Error(diff, err)
	}
	code, text := public(r, "/sd/prometheus")
	if b, err := os.ReadFile(cfg.FileSD); code != http.StatusOK || err != nil || string(b) != text {
		t.Errorf("over HTTP: %d %s, in the file %s", code, text, b)
	}
	if info, err := os.Stat(cfg.FileSD); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file: %v %v", info.Mode(), err)
	}
}

// TestTargetsAreListedOnce: however often the list is asked for, streams are asked every few
// seconds only.
func TestTargetsAreListedOnce(t *testing.T) {
	t.Parallel()
	made := 0
	l := targetList{list: func() []targetGroup {
		made++
		return nil
	}}
	now := time.Now()
	for _, c := range []struct {
		at   time.Duration
		want int
	}{{0, 1}, {sdEvery - 1, 1}, {sdEvery, 2}, {-time.Hour, 3}} { // a clock that is set back counts as too old
		if _, err := l.json(now.Add(c.at)); err != nil || made != c.want {
			t.Errorf("after %s: made %d times, want %d; %v", c.at, made, c.want, err)
		}
	}
}
