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

	"github.com/fairlead/fairlead/xds/fold"
	"github.com/fairlead/fairlead/xds/stream"
)

// clusters are the shop's configuration with another cluster in some version.
func (s *shop) clusters(mark string) map[string]proto.Message {
	out := s.messages("one")
	out["cds/other"] = parse(s.tb, &clusterv3.Cluster{}, `{"name":"other","type":"STATIC","alt_stat_name":%q}`, mark)
	return out
}

var otherCluster = key{stream.ClusterType, "other"}

// TestWildcardOfVirtualHosts has an Envoy ask for all virtual hosts where there are
// none by themselves: it is not kept waiting for them.
func TestWildcardOfVirtualHosts(t *testing.T) {
	t.Parallel()
	g := newRig(t, 40)
	g.core.request(time.Now(), g.peer, &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: string(stream.VirtualHostType), ResourceNamesSubscribe: []string{"*"},
	})
	g.server.SetGeneration(generation(t, 1, newShop(t).wholeOf(marksOf(3, "one"))))
	g.run()
	if !g.peer.look().calm || !g.peer.live || len(g.core.pending) > 0 {
		t.Errorf("the Envoy waits: %+v, pending are %v", g.peer.look(), g.core.pending)
	}
}

// TestAnswerWaitsForEnvoy: what Envoy has not answered is not accepted upstream.
func TestAnswerWaitsForEnvoy(t *testing.T) {
	t.Parallel()
	g := newRig(t, 40)
	g.silent = true
	g.serve(resourcesOf(t, newShop(t).messages("one")))
	settled := func() bool {
		return slices.ContainsFunc(g.events, func(e stream.Event) bool { return e.Kind == stream.EventSettled })
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

// TestEveryVersionIsAnswered has versions of one cluster come by one server after
// the other while Envoy says nothing: none counts as accepted that Envoy was not
// shown.
func TestEveryVersionIsAnswered(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 40), newShop(t)
	g.serve(resourcesOf(t, shop.clusters("one")))
	g.silent = true
	for _, mark := range []string{"two", refusedMark + "-1", refusedMark + "-2"} {
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

// TestRefusedIsNotTriedAgain: a server that knows nothing of a refusal is told of
// it, and Envoy is not bothered.
func TestRefusedIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 40), newShop(t)
	g.serve(resourcesOf(t, shop.clusters("one")))
	bad := resourcesOf(t, shop.clusters(refusedMark))
	g.serve(bad)
	before := g.refusals
	for range 2 {
		g.events = nil
		g.reconnect()
		g.serve(bad)
		if got := g.rejected(); !slices.Equal(got, []string{"other"}) {
			t.Errorf("the server is told that %q are refused", got)
		}
	}
	if before == 0 || g.refusals != before {
		t.Errorf("Envoy refused %d times, and %d times after that", before, g.refusals-before)
	}
}

// TestAnotherReleaseIsAsked: what one release refused, another may take.
func TestAnotherReleaseIsAsked(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 36), newShop(t)
	g.reconnect()
	g.serve(resourcesOf(t, shop.clusters("one")))
	bad := resourcesOf(t, shop.clusters(refusedMark))
	g.serve(bad)
	g.nice = true
	g.join(40)
	if !g.renewed {
		t.Error("the server does not learn that another release is there")
	}
	g.reconnect()
	g.serve(bad)
	if got := g.has[otherCluster]; got == nil || got.Version != bad[stream.ClusterType].Get("other").Version || len(g.core.rejected) > 0 {
		t.Errorf("Envoy has %v, rejected are %v", got, g.core.rejected)
	}
}

// TestRefusedOfTwoTables has two tables come in one response, with one virtual
// host that Envoy refuses: it alone is told of, once.
func TestRefusedOfTwoTables(t *testing.T) {
	t.Parallel()
	for _, minor := range minors {
		g, shop := newRig(t, minor), newShop(t)
		g.envoy.Subscribe(stream.RouteType, "more")
		marks := marksOf(25, "one")
		g.serve(resourcesOf(t, shop.twoTables(marks)))
		for name := range marks {
			marks[name] = "two"
		}
		bad := shop.twoTables(marks)
		h := bad["vhds/more/h03"].(*routev3.VirtualHost)
		h.Routes[0].RequestHeadersToAdd[0].Header.Value = refusedMark
		of := resourcesOf(t, bad)
		g.serve(of)
		if got := g.rejected(); !slices.Equal(got, []string{"more/h03"}) {
			t.Errorf("1.%d: the server is told that %q are refused", minor, got)
		}
		for name, table := range g.core.tables {
			for r := range table.accepted.hosts.All() {
				now := of[stream.VirtualHostType].Get(r.Name).Version
				if (r.Version == now) != (r.Name != "more/h03") {
					t.Errorf("1.%d: of %s, %s is accepted in version %s", minor, name, r.Name, r.Version)
				}
			}
		}
	}
}

// twoTables are the table "routes" and its like with another name.
func (s *shop) twoTables(marks map[string]string) map[string]proto.Message {
	out := s.tableOf(marks)
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

// TestRestartLetsGo: a relay that starts from its store knows which virtual hosts
// there are, so that it does not keep what is removed.
func TestRestartLetsGo(t *testing.T) {
	t.Parallel()
	for _, minor := range minors {
		g, shop := newRig(t, minor), newShop(t)
		messages := shop.clusters("one")
		maps.Copy(messages, shop.tableOf(marksOf(25, "one")))
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

// TestTableComesByAnotherServer: virtual hosts of a table that went do not count
// as what the relay has, or the next server would not send them.
func TestTableComesByAnotherServer(t *testing.T) {
	t.Parallel()
	for _, minor := range minors {
		g, shop := newRig(t, minor), newShop(t)
		messages := shop.tableOf(marksOf(25, "one"))
		with := resourcesOf(t, messages)
		maps.DeleteFunc(messages, func(name string, _ proto.Message) bool { return strings.Contains(name, "routes") })
		g.serve(with)
		routes := key{stream.RouteType, "routes"}
		if g.has[routes] == nil {
			t.Fatal("Envoy has not got the table")
		}
		g.serve(resourcesOf(t, messages))
		if g.has[routes] != nil {
			t.Errorf("1.%d: the table has not gone", minor)
		}
		g.reconnect()
		g.serve(with)
		if table := g.core.tables["routes"]; g.has[routes] == nil || table == nil || table.accepted.hosts.Len() != 25 {
			t.Errorf("1.%d: Envoy has %v, accepted is %+v", minor, g.has[routes], table)
		}
	}
}

// TestFormStays: a table near the threshold does not travel anew with every other
// change nor for a virtual host that Envoy refuses, and whole it stays where an Envoy
// has refused it in pieces.
func TestFormStays(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 40), newShop(t)
	for _, c := range []struct {
		hosts  int
		pieces bool
	}{{fold.Few + 5, true}, {fold.Few - 5, true}, {2, true}, {fold.Few + 5, true}} {
		g.serve(resourcesOf(t, shop.tableOf(marksOf(c.hosts, "one"))))
		if got := g.peer.split["routes"]; got != c.pieces {
			t.Errorf("with %d hosts in pieces: %t", c.hosts, got)
		}
	}
	marks := marksOf(fold.Few+5, "one")
	marks["h03"], marks["h04"], marks["new"] = refusedMark, "good", refusedMark
	g.serve(resourcesOf(t, shop.tableOf(marks)))
	if !g.peer.split["routes"] || !slices.Equal(g.rejected(), []string{"routes/h03", "routes/new"}) {
		t.Errorf("in pieces %t, rejected are %q", g.peer.split["routes"], g.rejected())
	}
	accepted := g.core.tables["routes"].accepted.hosts
	now := resourcesOf(t, shop.tableOf(marks))[stream.VirtualHostType]
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
		g.serve(resourcesOf(t, shop.tableOf(marks)))
		if !g.peer.split["routes"] || len(g.core.rejected) > 0 {
			t.Errorf("in pieces %t, rejected are %v", g.peer.split["routes"], g.core.rejected)
		}
	}
	bad := shop.tableOf(marks)
	bad["rds/routes"].(*routev3.RouteConfiguration).RequestHeadersToRemove = []string{refusedMark}
	g.serve(resourcesOf(t, bad))
	for _, mark := range []string{"four", "five"} {
		marks["h03"] = mark
		g.serve(resourcesOf(t, shop.tableOf(marks)))
		if g.peer.split["routes"] || !g.peer.whole["routes"] {
			t.Error("a table travels in pieces to an Envoy that refused it so")
		}
	}
}

// TestWholeStaysWhole: an Envoy that had a table whole because the server sent it so
// keeps it whole, for from whole to pieces there is a gap; the next one does not.
func TestWholeStaysWhole(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 40), newShop(t)
	marks := marksOf(fold.Few+5, "one")
	g.serve(resourcesOf(t, shop.wholeOf(marks)))
	g.serve(resourcesOf(t, shop.tableOf(marks)))
	if g.peer.split["routes"] || g.core.tables["routes"] == nil {
		t.Error("a table goes over to pieces")
	}
	g.join(40)
	g.run()
	if !g.peer.split["routes"] || g.has[key{stream.VirtualHostType, "routes/h03"}] == nil {
		t.Error("an Envoy that starts anew has the table whole")
	}
}

// TestFormOutlivesTheRelay: an Envoy that is there when its agent comes back keeps
// a table in the form in which it has it, and is sent nothing.
func TestFormOutlivesTheRelay(t *testing.T) {
	t.Parallel()
	for _, pieces := range []bool{false, true} {
		g, shop := newRig(t, 40), newShop(t)
		first, then := fold.Few-5, fold.Few+5
		if pieces {
			first, then = then, first
		}
		g.serve(resourcesOf(t, shop.tableOf(marksOf(first, "one"))))
		of := resourcesOf(t, shop.tableOf(marksOf(then, "one")))
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
		if len(g.has) > 0 || g.peer.split["routes"] != pieces {
			t.Errorf("in pieces %t, and was %t; sent again were %d resources", g.peer.split["routes"], pieces, len(g.has))
		}
	}
}

// TestTableIsAskedForAgain has Envoy leave a table and ask for it again, of another
// server.
func TestTableIsAskedForAgain(t *testing.T) {
	t.Parallel()
	for _, minor := range minors {
		for _, another := range []bool{false, true} {
			g, shop := newRig(t, minor), newShop(t)
			of := resourcesOf(t, shop.tableOf(marksOf(25, "one")))
			g.serve(of)
			g.envoy.Unsubscribe(stream.RouteType, "routes")
			g.run()
			if len(g.core.tables) > 0 {
				t.Errorf("1.%d: a table is kept that nobody asks for", minor)
			}
			delete(g.has, key{stream.RouteType, "routes"})
			if another {
				g.reconnect()
				g.serve(of)
			}
			g.envoy.Subscribe(stream.RouteType, "routes")
			g.run()
			if table := g.core.tables["routes"]; g.has[key{stream.RouteType, "routes"}] == nil || table == nil || table.accepted.hosts.Len() != 25 {
				t.Errorf("1.%d, another server %t: accepted is %+v", minor, another, table)
			}
		}
	}
}

// TestRefusalIsOfItsOwnServer: a server is not told that something is refused
// which only the one before it had sent.
func TestRefusalIsOfItsOwnServer(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 36), newShop(t)
	g.envoy.Subscribe(stream.RouteType, "more")
	messages := shop.twoTables(marksOf(25, "one"))
	g.serve(resourcesOf(t, messages))
	g.silent = true
	h := messages["vhds/more/h03"].(*routev3.VirtualHost)
	good := proto.CloneOf(h)
	h.Routes[0].RequestHeadersToAdd[0].Header.Value = refusedMark
	g.serve(resourcesOf(t, messages))
	g.reconnect()
	messages["vhds/more/h03"] = good
	messages["vhds/routes/h04"].(*routev3.VirtualHost).Routes[0].RequestHeadersToAdd[0].Header.Value = "two"
	g.serve(resourcesOf(t, messages))
	g.silent = false
	g.run()
	if got := g.rejected(); g.refusals == 0 || len(got) > 0 {
		t.Errorf("Envoy refused %d times, and the server is told that %q are refused", g.refusals, got)
	}
}

// TestStartingEnvoyKeepsItsTable: what is stored is not given up because an Envoy
// that starts has not yet asked for it.
func TestStartingEnvoyKeepsItsTable(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 40), newShop(t)
	g.serve(resourcesOf(t, shop.tableOf(marksOf(25, "one"))))
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
	if len(g.core.tables) != 1 {
		t.Error("the table was given up")
	}
	g.envoy.Subscribe(stream.RouteType, "routes")
	g.envoy.SubscribeAll(stream.VirtualHostType)
	g.run()
	if g.has[key{stream.RouteType, "routes"}] == nil || g.has[key{stream.VirtualHostType, "routes/h03"}] == nil {
		t.Error("Envoy has not got the table")
	}
}

// TestLeaveWritesTheLast: what was accepted just before the end is stored.
func TestLeaveWritesTheLast(t *testing.T) {
	t.Parallel()
	g, shop := newRig(t, 40), newShop(t)
	g.serve(resourcesOf(t, shop.clusters("one")))
	g.serve(resourcesOf(t, shop.clusters("two")))
	g.core.dirty = true // the writer is at work on an older one
	g.core.leave()
	s := <-g.core.w.in
	if got, want := s.resources[stream.ClusterType].Get("other").Version, g.has[otherCluster].Version; got != want {
		t.Errorf("stored is version %s, Envoy has %s", got, want)
	}
}

// TestListAfterRefusalIsNotBelieved has an Envoy list, when it comes back, a
// version that it refused in mid-flight, as real ones do.
func TestListAfterRefusalIsNotBelieved(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		g, shop := newRig(t, 40), newShop(t)
		g.late = late
		one, bad := resourcesOf(t, shop.clusters("one")), resourcesOf(t, shop.clusters(refusedMark))
		g.serve(one)
		g.sulky = true
		g.serve(bad)
		g.lists = map[stream.TypeURL]map[string]string{stream.ClusterType: {
			"app": one[stream.ClusterType].Get("app").Version, "other": bad[stream.ClusterType].Get("other").Version,
		}}
		g.sulky, g.silent = false, false
		g.join(40)
		g.run()
		if got, want := g.core.accepted[stream.ClusterType].Get("other").Version, one[stream.ClusterType].Get("other").Version; got != want {
			t.Errorf("late %t: accepted is %s, which Envoy has refused", late, got)
		}
		if got := g.rejected(); !slices.Equal(got, []string{"other"}) {
			t.Errorf("late %t: the server is told that %q are refused", late, got)
		}
	}
}
