package relay

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/ecds"
	"github.com/fairlead/fairlead/xds/stream"
)

// ruled are the shop's configuration with a listener that names extensions; rules are their
// versions: "allow", "deny", or another word, which the rig's Envoy may reject.
func (s *shop) ruled(rules map[string]string) map[string]proto.Message {
	out := s.messages("one")
	var filters strings.Builder
	for name, rule := range rules {
		filter := fmt.Sprintf(`{"@type":"type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC","rules_stat_prefix":%q}`, rule)
		if rule == "deny" {
			filter = `{"@type":"type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC","rules":{"action":"ALLOW"}}`
		}
		out["ecds/"+name] = parse(s.tb, &corev3.TypedExtensionConfig{}, `{"name":%q,"typed_config":%s}`, name, filter)
	}
	for _, name := range []string{"x", "y"} { // in an order of their own
		if rules[name] != "" {
			_, _ = fmt.Fprintf(&filters, `{"name":%q,"config_discovery":{"config_source":{"ads":{},"resource_api_version":"V3","initial_fetch_timeout":"0s"},
			 "type_urls":["type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"]}},`, name)
		}
	}
	out["lds/in"] = parse(s.tb, &listenerv3.Listener{}, `{"name":"in","address":{"socket_address":{"address":"127.0.0.1","port_value":%d}},
	 "filter_chains":[{"filters":[{"name":"hcm","typed_config":{
	  "@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager","stat_prefix":"in",
	  "rds":{"route_config_name":"routes","config_source":{"ads":{},"resource_api_version":"V3"}},
	  "http_filters":[%s{"name":"router","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}`, s.port, filters.String())
	return out
}

func extension(name string) key { return key{stream.ExtensionType, name} }

// checkStored checks that every state which was written has the extensions that its
// listeners name.
func (g *rig) checkStored() {
	g.tb.Helper()
	for i, s := range g.stored {
		for l := range s.resources[stream.ListenerType].All() {
			for _, name := range ecds.Names(l.Body) {
				if s.resources[stream.ExtensionType].Get(name) == nil {
					g.tb.Errorf("write %d has listener %s without extension %s", i, l.Name, name)
				}
			}
		}
	}
}

// TestListenerIsStoredWithItsExtensions has Envoy subscribe to extensions before and long
// after it accepts the listener: no state is written that has the one without the others.
func TestListenerIsStoredWithItsExtensions(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		g, shop := newRig(t, 40), newShop(t)
		g.serve(resourcesOf(t, shop.messages("one")))
		before := len(g.stored)
		if before == 0 {
			t.Fatal("nothing is written")
		}
		g.lateNames = late
		g.serve(resourcesOf(t, shop.ruled(map[string]string{"x": "allow", "y": "deny"})))
		if late {
			if g.core.accepted[stream.ListenerType].Get("in") == nil || len(g.core.extensions) == 0 {
				t.Error("Envoy has not accepted the listener")
			}
			g.core.saveOnExit()
			if len(g.stored) != before || len(g.core.w.in) != 0 {
				t.Errorf("%d states are written", len(g.stored)-before)
			}
			g.lateNames = false
			g.run()
		}
		if len(g.stored) == before || g.stored[len(g.stored)-1].resources[stream.ExtensionType].Len() != 2 {
			t.Error("the extensions are not written")
		}
		g.checkStored()
	}
}

// TestExtensionsAreServedFromTheStore starts a relay without a server: the Envoy gets the
// listener and its extensions. They stay stored although it has not subscribed to them yet
// when it accepts the listener.
func TestExtensionsAreServedFromTheStore(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 40), newShop(t)
	g.serve(resourcesOf(t, shop.ruled(map[string]string{"x": "allow", "y": "deny"})))
	last := g.stored[len(g.stored)-1]
	pieces, err := last.encode()
	g.must(err)
	last, err = decodeStore(slices.Concat(pieces...))
	g.must(err)
	g.server, g.peer, g.stored = stream.NewServer(stream.ServerConfig{}), nil, nil
	g.start(last)
	g.join(40)
	g.lateNames = true
	g.run()
	if g.has[key{stream.ListenerType, "in"}] == nil {
		t.Fatal("there is no listener")
	}
	g.lateNames = false
	g.run()
	for _, name := range []string{"x", "y"} {
		if g.has[extension(name)] == nil {
			t.Errorf("extension %s is not served", name)
		}
	}
	g.checkStored()
}

// TestExtensionsFollowTheirListener: those that Envoy subscribes to no longer are forgotten,
// and a server that does not have one any more takes it from no Envoy that uses it.
func TestExtensionsFollowTheirListener(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 40), newShop(t)
	both := resourcesOf(t, shop.ruled(map[string]string{"x": "allow", "y": "deny"}))
	g.serve(both)
	// A server that knows no extensions removes them as it does everything else.
	without := resourcesOf(t, shop.ruled(map[string]string{"x": "allow", "y": "deny"}))
	delete(without, stream.ExtensionType)
	g.serve(without)
	u, err := g.core.client.Response(g.wire(&stream.Response{TypeURL: stream.ExtensionType, Nonce: "other", Removed: []string{"x", "y"}}))
	g.must(err)
	g.core.receive(u)
	g.run()
	if g.has[extension("x")] == nil || g.core.accepted[stream.ExtensionType].Len() != 2 || len(g.core.pending) > 0 {
		t.Errorf("extensions are gone: Envoy has %v, accepted are %d", g.has, g.core.accepted[stream.ExtensionType].Len())
	}
	g.checkStored()
	g.serve(resourcesOf(t, shop.ruled(map[string]string{"x": "allow"})))
	if got := g.core.accepted[stream.ExtensionType]; got.Len() != 1 || got.Get("x") == nil || len(g.core.subscribed[stream.ExtensionType]) != 1 {
		t.Errorf("accepted are %d extensions", got.Len())
	}
	g.serve(resourcesOf(t, shop.messages("one")))
	if got := g.core.accepted[stream.ExtensionType]; got.Len() != 0 || len(g.core.extensions) != 0 || g.core.mustHoldRemovals() {
		t.Errorf("accepted are %d extensions, of listeners %v", got.Len(), g.core.extensions)
	}
	g.checkStored()
}

// TestRejectedExtension: the server learns exactly which one Envoy rejects, and the last good
// one stays. One without a last good one does not keep the state from being written.
func TestRejectedExtension(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 40), newShop(t)
	g.serve(resourcesOf(t, shop.ruled(map[string]string{"x": "allow", "y": "allow"})))
	good := g.has[extension("y")]
	g.serve(resourcesOf(t, shop.ruled(map[string]string{"x": "deny", "y": rejectedMark})))
	deny := resourcesOf(t, shop.ruled(map[string]string{"x": "deny"}))[stream.ExtensionType].Get("x")
	if got := g.rejected(); !slices.Equal(got, []string{"y"}) {
		t.Errorf("the server got NACKs for %q", got)
	}
	if g.has[extension("y")].Version != good.Version || g.has[extension("x")].Version != deny.Version {
		t.Errorf("Envoy has %v", g.has)
	}
	if got := g.core.accepted[stream.ExtensionType]; got.Get("y").Version != good.Version || got.Get("x").Version != deny.Version {
		t.Error("another version is accepted")
	}
	g.checkStored()

	g, g.events = newRig(t, 40), nil
	g.serve(resourcesOf(t, shop.ruled(map[string]string{"x": rejectedMark, "y": "allow"})))
	if got := g.rejected(); !slices.Equal(got, []string{"x"}) {
		t.Errorf("the server got NACKs for %q", got)
	}
	if n := len(g.stored); n == 0 || g.stored[n-1].resources[stream.ExtensionType].Get("y") == nil {
		t.Errorf("%d states are written", n)
	}
	g.serve(resourcesOf(t, shop.ruled(map[string]string{"x": "deny", "y": "allow"})))
	if g.has[extension("x")] == nil || len(g.core.rejected) > 0 {
		t.Errorf("Envoy has %v", g.has)
	}
}

// answered is nil once a request is answered with a status code.
func (s *shop) answered(want int) error {
	code, _, err := s.ask(s.tb.Context(), &http.Client{Timeout: envoytest.Attempt, Transport: &http.Transport{DisableKeepAlives: true}}, "any")
	if err == nil && code != want {
		err = fmt.Errorf("answered with %d, want %d", code, want)
	}
	return err
}

// TestExtensionsSurviveRestarts has real Envoys: rules change at once, and after a restart of
// relay and Envoy without a server they are those that were accepted last.
func TestExtensionsSurviveRestarts(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			server, shop := newServer(t), newShop(t)
			h := newHost(t, server.addr)
			_, stop := h.relay()
			server.set(generation(t, 1, shop.ruled(map[string]string{"x": "allow", "y": "allow"})))
			e := h.envoy(version)
			envoytest.Eventually(t, deadline, func() error { return shop.answered(http.StatusOK) })
			types := append(slices.Clone(fourTypes), stream.ExtensionType)
			server.inStep(t, 1, types...)
			server.takeSent()
			server.set(generation(t, 2, shop.ruled(map[string]string{"x": "deny", "y": "allow"})))
			server.inStep(t, 2, types...)
			if err := shop.answered(http.StatusForbidden); err != nil {
				t.Error("the server has the ACK, and the rules are not in force:", err)
			}
			if sent := server.takeSent(); !slices.Equal(sent, []string{"x"}) {
				t.Errorf("sent %q", sent)
			}
			server.kill()
			e.Kill()
			stop()
			h.relay()
			h.envoy(version)
			envoytest.Eventually(t, deadline, func() error { return shop.answered(http.StatusForbidden) })
			server.start()
			server.set(generation(t, 3, shop.ruled(map[string]string{"x": "allow", "y": "allow"})))
			server.inStep(t, 3, types...)
			if err := shop.answered(http.StatusOK); err != nil {
				t.Error(err)
			}
		})
	}
}
