package server

import (
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds"
	"github.com/fairlead/fairlead/xds/view"
)

// TestNoInboundSaysCauseAndCure: each cause has its own words, and its own cure.
func TestNoInboundSaysCauseAndCure(t *testing.T) {
	t.Parallel()
	entry := xds.Unserved{
		Key: mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: "shop", Name: "api-1"}, Origin: "mesh.yaml:7:1", Service: "api.shop",
		Account: mesh.ServiceAccount{Namespace: "shop", Name: "api"}, Address: "10.0.0.2", Port: 8080,
	}
	connected := entry
	connected.Proxy, connected.Host = "api-1.shop", "vm-2"
	for name, c := range map[string]struct {
		change       func(*xds.Unserved)
		text, action []string
	}{
		"no_listener": {func(u *xds.Unserved) { *u = connected }, []string{"shop/api-1 at 10.0.0.2 port 8080", "api.shop", "host vm-2 has no inbound listener", "without --capture"}, []string{"--capture", "ingress listener for port 8080", "mesh.yaml:7:1"}},
		"other_ports": {func(u *xds.Unserved) { *u = connected; u.Listens = true }, []string{"none at that port"}, []string{"ingress listener for port 8080"}},
		"plaintext":   {func(u *xds.Unserved) { *u = connected; u.Listens, u.Inbound = true, view.InboundPlaintext }, []string{"takes no mTLS"}, []string{"PeerAuthentication"}},
		"no_proxy":    {func(*xds.Unserved) {}, []string{"no proxy is connected"}, []string{"fairlead token create --host NAME --workload shop/api`", "name that in --advertise"}},
		"command":     {func(u *xds.Unserved) { u.Account.Name = "x$(reboot)`id`" }, nil, []string{"--workload shop/ACCOUNT`)"}},
		"instance":    {func(u *xds.Unserved) { u.Instance = true }, nil, []string{"--consul-service"}},
		"inline":      {func(u *xds.Unserved) { u.Key.Kind, u.Account.Name = mesh.KindServiceEntry, "" }, []string{"ServiceEntry shop/api-1 at"}, []string{"--workload shop/ACCOUNT"}},
	} {
		u := entry
		c.change(&u)
		got := noInbound(&Proxies{Unserved: []Unserved{{Unserved: u}}}, nil, time.Now())
		if len(got) != 1 || got[0].Host != u.Host || got[0].Proxy != u.Proxy {
			t.Errorf("%s: %+v", name, got)
			continue
		}
		for _, w := range c.text {
			if !strings.Contains(got[0].Text, w) {
				t.Errorf("%s: nothing of %q in %q", name, w, got[0].Text)
			}
		}
		for _, w := range c.action {
			if !strings.Contains(got[0].Action, w) {
				t.Errorf("%s: nothing of %q in %q", name, w, got[0].Action)
			}
		}
	}
	if got := noInbound(&Proxies{Unserved: make([]Unserved, mostUnserved+3)}, nil, time.Now()); len(got) != mostUnserved+1 || !strings.Contains(got[mostUnserved].Text, "3 endpoints more") {
		t.Errorf("%d conditions, the last is %+v", len(got), got[len(got)-1])
	}
}

// TestUnservedSince: an endpoint that was well in between, or is so for another reason, counts anew.
func TestUnservedSince(t *testing.T) {
	t.Parallel()
	var s unservedSince
	a := xds.Unserved{Key: mesh.Key{Name: "a"}, Port: 1}
	withProxy := a
	withProxy.Proxy = "a.shop"
	at := time.Now()
	for i, step := range []struct {
		list []xds.Unserved
		want time.Duration
	}{{[]xds.Unserved{a}, 0}, {[]xds.Unserved{a}, 0}, {nil, 0}, {[]xds.Unserved{a}, 3 * time.Second}, {[]xds.Unserved{withProxy}, 4 * time.Second}} {
		got := s.note(step.list, at.Add(time.Duration(i)*time.Second))
		if len(got) != len(step.list) || len(got) > 0 && got[0].Since.Sub(at) != step.want {
			t.Errorf("step %d: %+v", i, got)
		}
	}
}

// TestUnservedElsewhere: without a connected proxy, an endpoint is named only where this server can know that
// nothing takes mTLS there.
func TestUnservedElsewhere(t *testing.T) {
	t.Parallel()
	u := &Unserved{Unserved: xds.Unserved{
		Key:     mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: "shop", Name: "api-1"},
		Account: mesh.ServiceAccount{Namespace: "shop", Name: "api"},
	}}
	of := func(account string, direct bool) []attest.Host {
		return []attest.Host{{Name: "h", Direct: direct, Pairs: []profile.Pair{{Namespace: "shop", ServiceAccount: account}}}}
	}
	for name, c := range map[string]struct {
		record  []attest.Host
		away    string
		unknown bool
		want    bool
	}{
		"one_server":           {},
		"host_of_the_account":  {record: of("api", false)},
		"direct_client":        {record: of("api", true), want: true},
		"other_direct_client":  {record: of("web", true)},
		"host_is_away":         {away: "shop/api-1", want: true},
		"of_another_server":    {unknown: true, want: true},
		"another_host_is_away": {away: "shop/api-2"},
	} {
		if got := elsewhereOf(c.record, map[string]bool{c.away: true}, c.unknown)(u); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
