package relay

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
)

// clusters are the shop's configuration with another cluster in some version.
func (s *shop) clusters(mark string) map[string]proto.Message {
	out := s.messages("one")
	out["cds/other"] = parse(s.tb, &clusterv3.Cluster{}, `{"name":"other","type":"STATIC","alt_stat_name":%q}`, mark)
	return out
}

var otherCluster = key{stream.ClusterType, "other"}

// TestVHDSWildcardWithoutVHDS has an Envoy subscribe to all virtual hosts while all are
// inline: it does not wait for them.
func TestVHDSWildcardWithoutVHDS(t *testing.T) {
	t.Parallel()
	g := newRig(t, 40)
	g.core.request(time.Now(), g.peer, &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: string(stream.VirtualHostType), ResourceNamesSubscribe: []string{"*"},
	})
	g.server.SetGeneration(generation(t, 1, newShop(t).inlineOf(marksOf(3, "one"))))
	g.run()
	if !g.peer.ackState().idle || !g.peer.live || len(g.core.pending) > 0 {
		t.Errorf("the Envoy waits: %+v, pending are %v", g.peer.ackState(), g.core.pending)
	}
}

// TestAckWaitsForEnvoy: an update is acknowledged upstream only after Envoy has acknowledged
// it.
func TestAckWaitsForEnvoy(t *testing.T) {
	t.Parallel()
	g := newRig(t, 40)
	g.silent = true
	g.serve(resourcesOf(t, newShop(t).messages("one")))
	settled := func() bool {
		return slices.ContainsFunc(g.events, func(e stream.Event) bool {
			return e.Kind == stream.EventConverged && e.Type != bootstrap.ProxyConfigType // which no Envoy gets
		})
	}
	if settled() || len(g.core.pending) == 0 {
		t.Errorf("accepted before Envoy did: %+v", g.events)
	}
	g.silent = false
	g.run()
	if !settled() || len(g.core.pending) > 0 {
		t.Errorf("not accepted although Envoy did: %+v", g.events)
	}
}

// TestVersionsFromSeveralServers has several servers send versions of one cluster while Envoy
// does not answer. No version counts as accepted that Envoy did not get.
func TestVersionsFromSeveralServers(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 40), newShop(t)
	g.serve(resourcesOf(t, shop.clusters("one")))
	g.silent = true
	for _, mark := range []string{"two", rejectedMark + "-1", rejectedMark + "-2"} {
		g.reconnect()
		g.serve(resourcesOf(t, shop.clusters(mark)))
	}
	g.silent = false
	g.run()
	two := resourcesOf(t, shop.clusters("two"))[stream.ClusterType].Get("other").Version
	if got := g.core.accepted[stream.ClusterType].Get("other").Version; got != two || g.has[otherCluster].Version != two {
		t.Errorf("accepted is %s, Envoy has %s, want %s", got, g.has[otherCluster].Version, two)
	}
}

// TestRejectedVersionIsNotSentAgain: a server that sends a rejected version again gets the
// NACK from the relay, and Envoy is not asked again.
func TestRejectedVersionIsNotSentAgain(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 40), newShop(t)
	g.serve(resourcesOf(t, shop.clusters("one")))
	bad := resourcesOf(t, shop.clusters(rejectedMark))
	g.serve(bad)
	before := g.nacks
	for range 2 {
		g.events = nil
		g.reconnect()
		g.serve(bad)
		if got := g.rejected(); !slices.Equal(got, []string{"other"}) {
			t.Errorf("the server got NACKs for %q", got)
		}
	}
	if before == 0 || g.nacks != before {
		t.Errorf("Envoy sent %d NACKs, and %d after that", before, g.nacks-before)
	}
}

// TestOtherReleaseIsAskedAgain: another release may accept what one rejected.
func TestOtherReleaseIsAskedAgain(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 36), newShop(t)
	g.reconnect()
	g.serve(resourcesOf(t, shop.clusters("one")))
	bad := resourcesOf(t, shop.clusters(rejectedMark))
	g.serve(bad)
	g.acceptsAll = true
	g.join(40)
	if !g.reconnecting {
		t.Error("the server does not learn that another release is there")
	}
	g.reconnect()
	g.serve(bad)
	if got := g.has[otherCluster]; got == nil || got.Version != bad[stream.ClusterType].Get("other").Version || len(g.core.rejected) > 0 {
		t.Errorf("Envoy has %v, rejected are %v", got, g.core.rejected)
	}
}

// TestRejectedHostOfTwoRouteConfigs has two route configurations in one response, with one
// virtual host that Envoy rejects. It alone is rejected upstream, once.
func TestRejectedHostOfTwoRouteConfigs(t *testing.T) {
	t.Parallel()
	for _, minor := range minors {
		g, shop := newRig(t, minor), newShop(t)
		g.envoy.Subscribe(stream.RouteType, "more")
		marks := marksOf(25, "one")
		g.serve(resourcesOf(t, shop.twoRouteConfigs(marks)))
		for name := range marks {
			marks[name] = "two"
		}
		bad := shop.twoRouteConfigs(marks)
		h := bad["vhds/more/h03"].(*routev3.VirtualHost)
		h.Routes[0].RequestHeadersToAdd[0].Header.Value = rejectedMark
		of := resourcesOf(t, bad)
		g.serve(of)
		if got := g.rejected(); !slices.Equal(got, []string{"more/h03"}) {
			t.Errorf("1.%d: the server got NACKs for %q", minor, got)
		}
		for name, table := range g.core.routeConfigs {
			for r := range table.accepted.hosts.All() {
				now := of[stream.VirtualHostType].Get(r.Name).Version
				if (r.Version == now) != (r.Name != "more/h03") {
					t.Errorf("1.%d: of %s, %s is accepted in version %s", minor, name, r.Name, r.Version)
				}
			}
		}
	}
}

// twoRouteConfigs are the route configuration "routes" and a copy with the name "more".
func (s *shop) twoRouteConfigs(marks map[string]string) map[string]proto.Message {
	out := s.vhdsOf(marks)
	for name, m := range maps.Clone(out) {
		switch m := proto.Clone(m).(type) {
		case *routev3.RouteConfiguration:
			m.Name = "more"
			out["rds/more"] = m
		case *routev3.VirtualHost:
			m.Name = strings.Replace(m.GetName(), "routes/", "more/", 1)
			out[strings.Replace(name, "routes/", "more/", 1)] = m
		}
	}
	return out
}

// TestRemovalAfterRestart: a relay that starts from its store removes what the server has
// removed since.
func TestRemovalAfterRestart(t *testing.T) {
	t.Parallel()
	for _, minor := range minors {
		g, shop := newRig(t, minor), newShop(t)
		messages := shop.clusters("one")
		maps.Copy(messages, shop.vhdsOf(marksOf(25, "one")))
		g.serve(resourcesOf(t, messages))
		if g.has[otherCluster] == nil {
			t.Fatal("Envoy has not got the cluster")
		}
		stored := g.core.snapshot(time.Now())
		had := g.has
		g.start(stored)
		g.peer = nil
		g.join(minor)
		g.reconnect()
		delete(messages, "cds/other")
		g.serve(resourcesOf(t, messages))
		if g.has[otherCluster] != nil || len(g.core.pending) > 0 {
			t.Errorf("1.%d: Envoy still has %v, pending are %v", minor, g.has[otherCluster], g.core.pending)
		}
		delete(had, otherCluster)
		for k, r := range had {
			if g.has[k] == nil || g.has[k].Version != r.Version {
				t.Errorf("1.%d: of %v Envoy has %v after a restart", minor, k, g.has[k])
			}
		}
	}
}

// TestRouteConfigFromAnotherServer: virtual hosts of a removed route configuration are not
// reported as accepted, or the next server would not send them.
func TestRouteConfigFromAnotherServer(t *testing.T) {
	t.Parallel()
	for _, minor := range minors {
		g, shop := newRig(t, minor), newShop(t)
		messages := shop.vhdsOf(marksOf(25, "one"))
		with := resourcesOf(t, messages)
		maps.DeleteFunc(messages, func(name string, _ proto.Message) bool { return strings.Contains(name, "routes") })
		g.serve(with)
		routes := key{stream.RouteType, "routes"}
		if g.has[routes] == nil {
			t.Fatal("Envoy has no route configuration")
		}
		g.serve(resourcesOf(t, messages))
		if g.has[routes] != nil {
			t.Errorf("1.%d: the route configuration was not removed", minor)
		}
		g.reconnect()
		g.serve(with)
		if table := g.core.routeConfigs["routes"]; g.has[routes] == nil || table == nil || table.accepted.hosts.Len() != 25 {
			t.Errorf("1.%d: Envoy has %v, accepted is %+v", minor, g.has[routes], table)
		}
	}
}

// TestFormIsStable: a route configuration near the threshold does not change its form with
// every edit, nor for a rejected virtual host. It stays inline for an Envoy that rejected its
// base with VHDS.
func TestFormIsStable(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 40), newShop(t)
	for _, c := range []struct {
		hosts int
		vhds  bool
	}{{vhds.MaxInline + 5, true}, {vhds.MaxInline - 5, true}, {2, true}, {vhds.MaxInline + 5, true}} {
		g.serve(resourcesOf(t, shop.vhdsOf(marksOf(c.hosts, "one"))))
		if got := g.peer.vhds["routes"]; got != c.vhds {
			t.Errorf("with %d virtual hosts by VHDS: %t", c.hosts, got)
		}
	}
	marks := marksOf(vhds.MaxInline+5, "one")
	marks["h03"], marks["h04"], marks["new"] = rejectedMark, "good", rejectedMark
	g.serve(resourcesOf(t, shop.vhdsOf(marks)))
	if !g.peer.vhds["routes"] || !slices.Equal(g.rejected(), []string{"routes/h03", "routes/new"}) {
		t.Errorf("by VHDS: %t, rejected are %q", g.peer.vhds["routes"], g.rejected())
	}
	accepted := g.core.routeConfigs["routes"].accepted.hosts
	now := resourcesOf(t, shop.vhdsOf(marks))[stream.VirtualHostType]
	for r := range now.All() {
		k := key{stream.VirtualHostType, r.Name}
		is, has := accepted.Get(r.Name), g.has[k]
		switch r.Name {
		case "routes/new":
			if is != nil || has != nil {
				t.Errorf("%s is accepted, or Envoy has it", r.Name)
			}
		default:
			if is == nil || has == nil || has.Version != is.Version || (is.Version == r.Version) != (r.Name != "routes/h03") {
				t.Errorf("of %s is accepted %v, and Envoy has %v", r.Name, is, has)
			}
		}
	}
	delete(marks, "new")
	for _, mark := range []string{"two", "three"} {
		marks["h03"] = mark
		g.serve(resourcesOf(t, shop.vhdsOf(marks)))
		if !g.peer.vhds["routes"] || len(g.core.rejected) > 0 {
			t.Errorf("by VHDS: %t, rejected are %v", g.peer.vhds["routes"], g.core.rejected)
		}
	}
	bad := shop.vhdsOf(marks)
	bad["rds/routes"].(*routev3.RouteConfiguration).RequestHeadersToRemove = []string{rejectedMark}
	g.serve(resourcesOf(t, bad))
	for _, mark := range []string{"four", "five"} {
		marks["h03"] = mark
		g.serve(resourcesOf(t, shop.vhdsOf(marks)))
		if g.peer.vhds["routes"] || !g.peer.inlineOnly["routes"] {
			t.Error("an Envoy that rejected it with VHDS gets VHDS")
		}
	}
}

// TestInlineStaysInline: an Envoy that got a route configuration inline because the server
// sent it so keeps it inline, because a change to VHDS would leave a gap. The next Envoy gets
// VHDS.
func TestInlineStaysInline(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 40), newShop(t)
	marks := marksOf(vhds.MaxInline+5, "one")
	g.serve(resourcesOf(t, shop.inlineOf(marks)))
	g.serve(resourcesOf(t, shop.vhdsOf(marks)))
	if g.peer.vhds["routes"] || g.core.routeConfigs["routes"] == nil {
		t.Error("a route configuration changes from inline to VHDS")
	}
	g.join(40)
	g.run()
	if !g.peer.vhds["routes"] || g.has[key{stream.VirtualHostType, "routes/h03"}] == nil {
		t.Error("a new Envoy has the route configuration inline")
	}
}

// TestFormSurvivesRestartOfRelay: an Envoy that reconnects to a restarted relay keeps the form
// of a route configuration, and is sent nothing.
func TestFormSurvivesRestartOfRelay(t *testing.T) {
	t.Parallel()
	for _, byVHDS := range []bool{false, true} {
		g, shop := newRig(t, 40), newShop(t)
		first, then := vhds.MaxInline-5, vhds.MaxInline+5
		if byVHDS {
			first, then = then, first
		}
		g.serve(resourcesOf(t, shop.vhdsOf(marksOf(first, "one"))))
		of := resourcesOf(t, shop.vhdsOf(marksOf(then, "one")))
		g.serve(of)
		g.lists = map[stream.TypeURL]map[string]string{}
		for k, r := range g.has {
			if g.lists[k.url] == nil {
				g.lists[k.url] = map[string]string{}
			}
			g.lists[k.url][k.name] = r.Version
		}
		g.start(g.core.snapshot(time.Now()))
		g.peer = nil
		g.join(40)
		g.run()
		if len(g.has) > 0 || g.peer.vhds["routes"] != byVHDS {
			t.Errorf("by VHDS: %t, and before: %t; %d resources were sent again", g.peer.vhds["routes"], byVHDS, len(g.has))
		}
	}
}

// TestResubscribeRouteConfig has Envoy unsubscribe from a route configuration and subscribe
// again, also with another server.
func TestResubscribeRouteConfig(t *testing.T) {
	t.Parallel()
	for _, minor := range minors {
		for _, another := range []bool{false, true} {
			g, shop := newRig(t, minor), newShop(t)
			of := resourcesOf(t, shop.vhdsOf(marksOf(25, "one")))
			g.serve(of)
			g.envoy.Unsubscribe(stream.RouteType, "routes")
			g.run()
			if len(g.core.routeConfigs) > 0 {
				t.Errorf("1.%d: a route configuration without subscription is kept", minor)
			}
			delete(g.has, key{stream.RouteType, "routes"})
			if another {
				g.reconnect()
				g.serve(of)
			}
			g.envoy.Subscribe(stream.RouteType, "routes")
			g.run()
			if table := g.core.routeConfigs["routes"]; g.has[key{stream.RouteType, "routes"}] == nil || table == nil || table.accepted.hosts.Len() != 25 {
				t.Errorf("1.%d, another server %t: accepted is %+v", minor, another, table)
			}
		}
	}
}

// TestRejectionIsReportedToItsServer: a server gets no NACK for a version that only the server
// before it has sent.
func TestRejectionIsReportedToItsServer(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 36), newShop(t)
	g.envoy.Subscribe(stream.RouteType, "more")
	messages := shop.twoRouteConfigs(marksOf(25, "one"))
	g.serve(resourcesOf(t, messages))
	g.silent = true
	h := messages["vhds/more/h03"].(*routev3.VirtualHost)
	good := proto.CloneOf(h)
	h.Routes[0].RequestHeadersToAdd[0].Header.Value = rejectedMark
	g.serve(resourcesOf(t, messages))
	g.reconnect()
	messages["vhds/more/h03"] = good
	messages["vhds/routes/h04"].(*routev3.VirtualHost).Routes[0].RequestHeadersToAdd[0].Header.Value = "two"
	g.serve(resourcesOf(t, messages))
	g.silent = false
	g.run()
	if got := g.rejected(); g.nacks == 0 || len(got) > 0 {
		t.Errorf("Envoy sent %d NACKs, and the server got NACKs for %q", g.nacks, got)
	}
}

// TestStartingEnvoyKeepsStoredRoutes: a stored route configuration is not pruned because an
// Envoy that starts has not subscribed to it yet.
func TestStartingEnvoyKeepsStoredRoutes(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 40), newShop(t)
	g.serve(resourcesOf(t, shop.vhdsOf(marksOf(25, "one"))))
	g.start(g.core.snapshot(time.Now()))
	g.peer = nil
	g.join(40)
	g.envoy = stream.NewClient(stream.ClientConfig{Wants: map[stream.TypeURL]stream.Want{
		stream.ClusterType: {All: true}, stream.EndpointType: {Names: []string{"app"}}, stream.ListenerType: {All: true},
	}})
	g.envoy.Open()
	g.silent = true
	g.run()
	g.silent = false
	if len(g.core.routeConfigs) != 1 {
		t.Error("the route configuration was removed")
	}
	g.envoy.Subscribe(stream.RouteType, "routes")
	g.envoy.SubscribeAll(stream.VirtualHostType)
	g.run()
	if g.has[key{stream.RouteType, "routes"}] == nil || g.has[key{stream.VirtualHostType, "routes/h03"}] == nil {
		t.Error("Envoy has no route configuration")
	}
}

// TestExitSavesTheNewestState: what was accepted just before the end is stored.
func TestExitSavesTheNewestState(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 40), newShop(t)
	g.serve(resourcesOf(t, shop.clusters("one")))
	g.serve(resourcesOf(t, shop.clusters("two")))
	g.core.dirty = true // the writer is at work on an older one
	g.core.saveOnExit()
	s := <-g.core.w.in
	if got, want := s.resources[stream.ClusterType].Get("other").Version, g.has[otherCluster].Version; got != want {
		t.Errorf("stored is version %s, Envoy has %s", got, want)
	}
}

// TestReportedVersionAfterNACKIsNotTrusted has an Envoy report, when it reconnects, a version
// that it rejected just before, as real ones do.
func TestReportedVersionAfterNACKIsNotTrusted(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		g, shop := newRig(t, 40), newShop(t)
		g.lateDisconnect = late
		one, bad := resourcesOf(t, shop.clusters("one")), resourcesOf(t, shop.clusters(rejectedMark))
		g.serve(one)
		g.silentAfterNACK = true
		g.serve(bad)
		g.lists = map[stream.TypeURL]map[string]string{stream.ClusterType: {
			"app": one[stream.ClusterType].Get("app").Version, "other": bad[stream.ClusterType].Get("other").Version,
		}}
		g.silentAfterNACK, g.silent = false, false
		g.join(40)
		g.run()
		if got, want := g.core.accepted[stream.ClusterType].Get("other").Version, one[stream.ClusterType].Get("other").Version; got != want {
			t.Errorf("late %t: accepted is %s, which Envoy has refused", late, got)
		}
		if got := g.rejected(); !slices.Equal(got, []string{"other"}) {
			t.Errorf("late %t: the server got NACKs for %q", late, got)
		}
	}
}
