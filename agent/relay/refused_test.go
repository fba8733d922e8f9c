package relay

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

const (
	portInUse  = "Error adding/updating listener(s) inbound: cannot bind '10.0.0.1:8080': Address already in use"
	noSuchFile = "Error adding/updating listener(s) inbound: unable to open file '/var/log/gone/access.log': No such file or directory"
	broken     = "Error adding/updating listener(s) inbound: something is wrong with it"
)

// servedAs are the resources of a server with that listener, or with none.
func servedAs(listeners ...*stream.Resource) resources {
	return resources{stream.ClusterType: stream.NewSet(nil), stream.ListenerType: stream.NewSet(listeners)}
}

// restarted is a relay with a stored listener, whose Envoy, of the same release as before, rejects it.
func restarted(tb testing.TB, reason string) *rig {
	tb.Helper()
	g := &rig{tb: tb, server: stream.NewServer(stream.ServerConfig{}), reason: reason}
	g.start(storedAs("1.40", listenerOf("v1", "v1 "+rejectedMark)))
	g.core.node = withVersion(g, 40)
	return g
}

// pass lets time pass until Envoy has got something again.
func (g *rig) pass() {
	g.tb.Helper()
	for before := g.nacks; g.nacks == before && len(g.core.r.Status().Rejected) > 0; {
		g.passOnce()
	}
}

// passOnce lets time pass until the next deadline of anything.
func (g *rig) passOnce() {
	g.tb.Helper()
	due := g.peer.protocol.NextDeadline()
	for _, x := range g.core.retries {
		if !x.at.IsZero() && (due.IsZero() || x.at.Before(due)) {
			due = x.at
		}
	}
	if due.IsZero() {
		g.tb.Fatal("nothing is tried again")
	}
	if due.After(g.now) {
		g.now = due
	}
	g.run()
}

func (g *rig) wantRejected(reason string) {
	g.tb.Helper()
	s := g.core.r.Status()
	if len(s.Rejected) != 1 || s.Rejected[0].Name != "inbound" || s.Rejected[0].Reason != reason || s.Envoy != bootstrap.EnvoyRejecting {
		g.tb.Errorf("Envoy is %s, rejected is %+v, want %q", s.Envoy, s.Rejected, reason)
	}
}

func (g *rig) wantServed(version string) {
	g.tb.Helper()
	s := g.core.r.Status()
	if got := g.has[key{stream.ListenerType, "inbound"}]; got == nil || got.Version != version || len(s.Rejected) != 0 || s.Envoy != bootstrap.EnvoyLive {
		g.tb.Errorf("Envoy has %v and is %s, rejected is %+v", got, s.Envoy, s.Rejected)
	}
}

// serverRejects are the rejected names of listeners, as the server knows them.
func (g *rig) serverRejects() (out []string) {
	for _, t := range g.server.Status() {
		for _, r := range t.Rejected {
			out = append(out, r.Name)
		}
	}
	return out
}

// TestStoredListenerThatEnvoyRejects: without a control plane it is rejected, stays stored, and is
// tried again with growing pauses until Envoy takes it.
func TestStoredListenerThatEnvoyRejects(t *testing.T) {
	t.Parallel()
	for name, reason := range map[string]string{"port": portInUse, "file": noSuchFile, "other": broken} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := restarted(t, reason)
			g.join(40)
			g.run()
			g.wantRejected(reason)
			last := g.stored[len(g.stored)-1]
			if l := last.resources[stream.ListenerType].Get("inbound"); l == nil || len(last.Refused) != 1 {
				t.Errorf("the stored state has %v, refused: %+v", l, last.Refused)
			}
			var waits []time.Duration
			for range 9 {
				before := g.now
				g.pass()
				waits = append(waits, g.now.Sub(before).Round(time.Second))
				g.wantRejected(reason)
			}
			if g.nacks != 10 || waits[0] > 2*time.Second || waits[8] != time.Minute || !slices.IsSorted(waits) {
				t.Errorf("%d attempts after %s", g.nacks, waits)
			}
			g.acceptsAll = true
			g.pass()
			g.wantServed("v1")
			if last := g.stored[len(g.stored)-1]; len(last.Refused) != 0 {
				t.Errorf("stored as refused: %+v", last.Refused)
			}
		})
	}
}

// TestServerKnowsWhatIsNotServed: a server that was told that a listener is accepted learns that it
// is rejected, and that it is taken again, whatever restarts in between.
func TestServerKnowsWhatIsNotServed(t *testing.T) {
	t.Parallel()
	for name, reason := range map[string]string{"port": portInUse, "file": noSuchFile, "other": broken} {
		for _, restarts := range []string{"Envoy", "agent", "server"} {
			t.Run(name+"/"+restarts, func(t *testing.T) {
				t.Parallel()
				g, l := restarted(t, reason), listenerOf("v1", "v1 "+rejectedMark)
				g.acceptsAll = true
				g.join(40)
				g.reconnect()
				g.serve(servedAs(l))
				g.wantServed("v1")
				g.acceptsAll = false
				g.join(40)
				g.run()
				if !g.reconnecting {
					t.Fatal("the server is not told")
				}
				if restarts == "agent" {
					g.start(g.stored[len(g.stored)-1])
					g.core.node = withVersion(g, 40)
					if s := g.core.allRejected(); len(s) != 1 {
						t.Errorf("after the restart of the agent: %+v", s)
					}
					g.peer, g.events = nil, nil
					g.join(40)
				}
				g.reconnect()
				g.wantRejectedBy(l, reason)
				if restarts == "server" {
					g.reconnect()
					g.wantRejectedBy(l, reason)
				}
				g.reconnecting, g.acceptsAll = false, true
				g.pass()
				g.wantServed("v1")
				if !g.reconnecting {
					t.Fatal("the server is not told that it is served again")
				}
				g.reconnect()
				g.events = nil
				g.serve(servedAs(l))
				if got := g.serverRejects(); len(got) != 0 {
					t.Errorf("the server knows as rejected: %q", got)
				}
				for _, e := range g.events {
					if e.Kind == stream.EventSent && e.Type == stream.ListenerType && e.Names > 0 {
						t.Errorf("the server sent what Envoy has: %+v", e)
					}
				}
			})
		}
	}
}

// wantRejectedBy runs with a server that has the listener.
func (g *rig) wantRejectedBy(l *stream.Resource, reason string) {
	g.tb.Helper()
	g.serve(servedAs(l))
	if got := g.serverRejects(); !slices.Equal(got, []string{"inbound"}) {
		g.tb.Errorf("the server knows as rejected: %q", got)
	}
	g.wantRejected(reason)
	if got := g.core.accepted[stream.ListenerType].Get("inbound"); got == nil {
		g.tb.Error("the host has forgotten its listener")
	}
}

// TestRejectedListenerIsRemovedWhileTheServerIsAway: a server that does not have it says so, although
// Envoy does not have it either.
func TestRejectedListenerIsRemovedWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	g := restarted(t, portInUse)
	g.join(40)
	g.run()
	g.reconnect()
	g.serve(servedAs())
	if s := g.core.r.Status(); len(s.Rejected) != 0 || s.Envoy != bootstrap.EnvoyLive || g.core.accepted[stream.ListenerType].Len() != 0 {
		t.Errorf("Envoy is %s, rejected: %+v, accepted: %d", s.Envoy, s.Rejected, g.core.accepted[stream.ListenerType].Len())
	}
	g.acceptsAll = true
	for g.peer.protocol.NextDeadline() != (time.Time{}) {
		g.passOnce()
	}
	if g.has[key{stream.ListenerType, "inbound"}] != nil {
		t.Error("a listener that no server has is served")
	}
}

// TestNewVersionIsTriedAgain: a new version that Envoy rejects because of its host is tried again
// without the server, and the one before it is in force until then.
func TestNewVersionIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]bool{"server_is_there": false, "server_is_away": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v1, v2 := listenerOf("v1", "v1"), listenerOf("v2", "v2 "+rejectedMark)
			g := &rig{tb: t, server: stream.NewServer(stream.ServerConfig{Retry: stream.Retry{None: true}}), reason: noSuchFile}
			g.start(storedAs("1.40", v1))
			g.core.node = withVersion(g, 40)
			g.join(40)
			g.reconnect()
			g.server = stream.NewServer(stream.ServerConfig{Retry: stream.Retry{None: true}})
			g.serve(servedAs(v2))
			g.wantRejected(noSuchFile)
			if got := g.serverRejects(); !slices.Equal(got, []string{"inbound"}) {
				t.Errorf("the server knows as rejected: %q", got)
			}
			if away {
				g.core.upstream = nil
				g.server = stream.NewServer(stream.ServerConfig{})
			}
			g.pass()
			g.pass()
			if got := g.has[key{stream.ListenerType, "inbound"}]; g.nacks != 3 || got == nil || got.Version != "v1" {
				t.Errorf("%d attempts, Envoy has %v", g.nacks, got)
			}
			g.wantRejected(noSuchFile)
			g.acceptsAll = true
			g.pass()
			g.wantServed("v2")
			if last := g.stored[len(g.stored)-1]; last.resources[stream.ListenerType].Get("inbound").Version != "v2" {
				t.Error("the new version is not stored")
			}
			g.reconnect()
			g.events = nil
			g.serve(servedAs(v2))
			if got := g.serverRejects(); len(got) != 0 || slices.ContainsFunc(g.events, func(e stream.Event) bool {
				return e.Kind == stream.EventSent && e.Type == stream.ListenerType && e.Names > 0
			}) {
				t.Errorf("the server knows as rejected: %q, %+v", got, g.events)
			}
		})
	}
}

// TestWorkloadWithoutInboundListenersIsUnhealthy: a workload none of whose inbound listeners is served
// is reported as unhealthy until one is, whatever its application says.
func TestWorkloadWithoutInboundListenersIsUnhealthy(t *testing.T) {
	t.Parallel()
	in := func(name, version string, bad bool) *stream.Resource {
		body := "in"
		if bad {
			body += rejectedMark
		}
		return stream.NewResource(stream.ListenerType, stream.Resource{Name: name, Version: version, Body: []byte(body)})
	}
	out := stream.NewResource(stream.ListenerType, stream.Resource{Name: "out", Version: "v1", Body: []byte("out " + rejectedMark)})
	for name, c := range map[string]struct {
		of     []*stream.Resource
		stored bool
		well   bool
	}{
		"stored":                {of: []*stream.Resource{in("inbound", "v1", true)}, stored: true},
		"sent":                  {of: []*stream.Resource{in("inbound", "v1", true)}},
		"one_of_two_is_served":  {of: []*stream.Resource{in("inbound", "v1", true), in("other", "v1", false)}, well: true},
		"only_outbound_refused": {of: []*stream.Resource{out, in("inbound", "v1", false)}, well: true},
		"no_inbound":            {of: []*stream.Resource{out}, well: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := &rig{tb: t, server: stream.NewServer(stream.ServerConfig{}), reason: portInUse}
			g.inbound = func(body []byte) bool { return strings.HasPrefix(string(body), "in") }
			if !c.well {
				g.reason = broken // sent or stored, whatever the reason is
			}
			g.reason = strings.Replace(g.reason, "inbound:", c.of[0].Name+":", 1)
			s := storedAs("1.40", listenerOf("v1", "v1"))
			s.resources[stream.ListenerType] = stream.NewSet(nil)
			if c.stored {
				s.resources = servedAs(c.of...)
			}
			g.start(s)
			g.core.node = withVersion(g, 40)
			g.core.r.SetHealth(Health{Healthy: true})
			g.join(40)
			g.reconnect()
			g.core.upstream.healthDue = true
			g.serve(servedAs(c.of...))
			if got := g.core.r.Status().Unserved; (got == "") != c.well {
				t.Errorf("unserved: %q", got)
			}
			if c.stored { // a restarted agent says so before its Envoy has answered
				before := g.core
				g.start(g.stored[len(g.stored)-1])
				if h := g.core.health(); h == nil || h.Healthy {
					t.Errorf("after a restart of the agent: %+v", h)
				}
				g.core = before
			}
			g.reconnect() // every stream is told
			g.core.upstream.healthDue, g.reports = true, nil
			g.serve(servedAs(c.of...))
			if got := g.lastHealth(); c.well && got != "" || !c.well && !strings.Contains(got, "inbound: ") {
				t.Errorf("reported: %q", got)
			}
			g.acceptsAll = true
			if !c.stored && !c.well { // nothing is tried again: the object is corrected
				g.serve(servedAs(in("inbound", "v2", false)))
			} else {
				g.pass()
			}
			if got := g.lastHealth(); got != "" || g.core.r.Status().Unserved != "" {
				t.Errorf("reported: %q, unserved: %q", got, g.core.r.Status().Unserved)
			}
		})
	}
}

// lastHealth is the reason of the report that counts; empty if it says healthy.
func (g *rig) lastHealth() string {
	g.tb.Helper()
	for _, r := range slices.Backward(g.reports) {
		if r.GetTypeUrl() == bootstrap.HealthType {
			return r.GetErrorDetail().GetMessage()
		}
	}
	g.tb.Error("no health is reported")
	return "none"
}

// TestManyRejectedListenersAreStoredInLittle: Envoy's message about many listeners is not stored with
// each of them.
func TestManyRejectedListenersAreStoredInLittle(t *testing.T) {
	t.Parallel()
	const many = 100
	s := storedAs("1.40", listenerOf("v1", "v1"))
	var list []*stream.Resource
	var reason strings.Builder
	reason.WriteString("Error adding/updating listener(s) ")
	for i := range many {
		name := fmt.Sprintf("10.0.0.1_%d", 8000+i)
		list = append(list, stream.NewResource(stream.ListenerType, stream.Resource{Name: name, Version: "v1", Body: []byte(rejectedMark)}))
		reason.WriteString(name + ": unable to open file '/var/log/gone/access.log': No such file or directory, ")
	}
	s.resources[stream.ListenerType] = stream.NewSet(list)
	g := &rig{tb: t, server: stream.NewServer(stream.ServerConfig{}), reason: reason.String()}
	g.start(s)
	g.core.node = withVersion(g, 40)
	g.join(40)
	g.run()
	refused := g.stored[len(g.stored)-1].Refused
	if len(refused) != many || len(g.core.r.Status().Rejected) != many {
		t.Fatalf("%d of %d are refused", len(refused), many)
	}
	for _, x := range refused {
		if len(x.Reason) > maxStoredReason || !strings.HasPrefix(x.Reason, x.Name+": ") {
			t.Fatalf("%s is stored with %q", x.Name, x.Reason)
		}
	}
}

// TestRefusalOfWhatEnvoyDoesNotAskFor: a stored route configuration, or an extension, that was refused,
// and that the Envoy of today has no listener for: it never answers about it. The refusal ends, and so
// does the subscription.
func TestRefusalOfWhatEnvoyDoesNotAskFor(t *testing.T) {
	t.Parallel()
	for name, asks := range map[string]bool{"asked_for": true, "not_asked_for": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, url := range []stream.TypeURL{stream.RouteType, stream.ExtensionType} {
				gone := stream.NewResource(url, stream.Resource{Name: "routes", Version: "v1", Body: []byte(rejectedMark)})
				s := storedAs("1.40", listenerOf("v1", "v1"))
				s.resources[url] = stream.NewSet([]*stream.Resource{gone})
				s.Wants[url] = stream.Want{Names: []string{"routes"}}
				s.Refused = []Rejection{{Type: url, Name: "routes", Version: "v1", Reason: broken}}
				g := &rig{tb: t, server: stream.NewServer(stream.ServerConfig{}), reason: broken, lateNames: true}
				g.start(s)
				g.core.node = withVersion(g, 40)
				g.join(40)
				g.envoy = stream.NewClient(stream.ClientConfig{Wants: map[stream.TypeURL]stream.Want{stream.ClusterType: {All: true}, stream.ListenerType: {All: true}}})
				g.envoy.Open()
				if asks {
					g.envoy.Subscribe(url, "routes")
				}
				g.run()
				if n := len(g.core.r.Status().Rejected); (n == 1) != asks {
					t.Errorf("%s: %d are rejected", url.Short(), n)
				}
				if kept := g.core.accepted[url].Get("routes") != nil; kept != asks {
					t.Errorf("%s: accepted: %t", url.Short(), kept)
				}
				if !asks && (len(g.stored) == 0 || len(g.stored[len(g.stored)-1].Refused) > 0) {
					t.Errorf("%s: it is still stored as refused", url.Short())
				}
			}
		})
	}
}
