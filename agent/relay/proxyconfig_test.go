package relay

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// proxyConfig is a ProxyConfig as a server has it for one host.
func proxyConfig(version, body string) *stream.Set {
	return stream.NewSet([]*stream.Resource{stream.NewResource(bootstrap.ProxyConfigType, stream.Resource{
		Name: bootstrap.ProxyConfigName, Version: version, Body: []byte(body),
	})})
}

// TestProxyConfigIsForTheAgentAlone: the agent gets it, whatever Envoy does; it is answered at
// once, stored with what Envoy accepted, and never given to an Envoy.
func TestProxyConfigIsForTheAgentAlone(t *testing.T) {
	t.Parallel()
	g := newRig(t, 40)
	var got []string
	g.configure = func(body []byte) error {
		if body != nil {
			got = append(got, string(body))
		}
		return nil
	}
	g.silent = true // no Envoy answers anything
	g.server.SetOwn(bootstrap.ProxyConfigType, proxyConfig("1", "one"))
	g.envoy.Subscribe(bootstrap.ProxyConfigType, bootstrap.ProxyConfigName) // as no Envoy does
	g.serve(resourcesOf(t, newShop(t).messages("one")))
	accepted := func(version string) {
		t.Helper()
		i := slices.IndexFunc(g.server.Sent(bootstrap.ProxyConfigType), func(s stream.Sent) bool { return s.Version == version && !s.Unknown })
		if i < 0 {
			t.Errorf("the server has %+v, want version %s accepted", g.server.Sent(bootstrap.ProxyConfigType), version)
		}
	}
	accepted("1")
	g.silent = false
	g.run()
	for k := range g.has {
		if k.url == bootstrap.ProxyConfigType {
			t.Error("Envoy has the agent's ProxyConfig")
		}
	}
	if len(g.has) == 0 {
		t.Error("Envoy has nothing")
	}
	g.server.SetOwn(bootstrap.ProxyConfigType, proxyConfig("2", "two"))
	g.run()
	accepted("2")
	if r := g.stored[len(g.stored)-1].resources[bootstrap.ProxyConfigType].Get(bootstrap.ProxyConfigName); r == nil || string(r.Body) != "two" {
		t.Errorf("stored: %v", r)
	}
	if len(g.core.subscribed[bootstrap.ProxyConfigType]) > 0 {
		t.Error("Envoy's request counts")
	}
	if !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("the agent got %q", got)
	}

	// A server that knows nothing of it, as earlier releases, takes nothing away.
	g.reconnect()
	g.serve(resourcesOf(t, newShop(t).messages("one")))
	last := g.stored[len(g.stored)-1]
	if r := last.resources[bootstrap.ProxyConfigType].Get(bootstrap.ProxyConfigName); r == nil || string(r.Body) != "two" {
		t.Errorf("stored: %v", r)
	}

	// A relay that starts from the store is sent nothing again, and its Envoy nothing of it.
	path := filepath.Join(t.TempDir(), "store")
	if _, err := writeStore(path, last); err != nil {
		t.Fatal(err)
	}
	if body, ok := StoredProxyConfig(path, g.core.node); string(body) != "two" || !ok {
		t.Errorf("stored: %q, %t", body, ok)
	}
	stored, err := readStore(path)
	g.must(err)
	got, g.peer, g.server = nil, nil, stream.NewServer(stream.ServerConfig{})
	g.start(stored)
	g.join(40)
	g.core.client.Open()
	g.server.SetOwn(bootstrap.ProxyConfigType, proxyConfig("2", "two"))
	g.events = nil
	g.serve(resourcesOf(t, newShop(t).messages("one")))
	accepted("2")
	for _, e := range g.events {
		if e.Kind == stream.EventSent && e.Type == bootstrap.ProxyConfigType {
			t.Errorf("sent again after a restart: %+v", e)
		}
	}
	for url := range maps.Keys(g.core.offered) {
		if url == bootstrap.ProxyConfigType {
			t.Error("it is offered to Envoys")
		}
	}
	other := stored.Who
	stored.Who = "another"
	if _, err := writeStore(path, stored); err != nil {
		t.Fatal(err)
	}
	if body, ok := StoredProxyConfig(path, g.core.node); body != nil || ok {
		t.Errorf("the ProxyConfig of another workload is used instead of that of %s: %q", other, body)
	}
}

// TestRejectedProxyConfig: the server learns why, and the last good one stays in force, also on
// disk and after a reconnect.
func TestRejectedProxyConfig(t *testing.T) {
	t.Parallel()
	g := newRig(t, 40)
	var got []string
	g.configure = func(body []byte) error {
		if strings.HasPrefix(string(body), "bad") {
			return errors.New("concurrency: -1 is below 0")
		}
		got = append(got, string(body))
		return nil
	}
	g.server.SetOwn(bootstrap.ProxyConfigType, proxyConfig("1", "one"))
	g.serve(resourcesOf(t, newShop(t).messages("one")))
	g.server.SetOwn(bootstrap.ProxyConfigType, proxyConfig("2", "bad"))
	g.run()
	why := func() string {
		for _, s := range g.server.Status() {
			for _, r := range s.Rejected {
				return string(s.Type) + " " + r.Version + " " + r.Reason
			}
		}
		return ""
	}
	const want = bootstrap.ProxyConfigType + " 2 concurrency: -1 is below 0"
	if why() != want {
		t.Errorf("the server was told %q", why())
	}
	if s := g.core.r.Status(); s.ProxyConfig != "1" || s.RefusedProxyConfig == nil || s.RefusedProxyConfig.Version != "2" || len(s.Rejected) > 0 {
		t.Errorf("status %+v", s)
	}
	g.reconnect()
	g.server.SetOwn(bootstrap.ProxyConfigType, proxyConfig("2", "bad"))
	g.serve(resourcesOf(t, newShop(t).messages("one")))
	if why() != want {
		t.Errorf("another server was told %q", why())
	}
	last := g.stored[len(g.stored)-1]
	if r := last.resources[bootstrap.ProxyConfigType].Get(bootstrap.ProxyConfigName); r == nil || r.Version != "1" {
		t.Errorf("stored: %v", r)
	}
	g.server.SetOwn(bootstrap.ProxyConfigType, proxyConfig("3", "three"))
	g.run()
	if s := g.core.r.Status(); why() != "" || s.ProxyConfig != "3" || s.RefusedProxyConfig != nil {
		t.Errorf("after the cure: %q, status %+v", why(), s)
	}
	if last := got[len(got)-1]; last != "three" {
		t.Errorf("the agent has %q", last)
	}
}
