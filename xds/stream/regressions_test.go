package stream

import (
	"slices"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

func holdRemovals(g *Generation) *Generation {
	g.HoldRemovals = true
	return g
}

// A resource that is unanswered when removals are allowed again is removed like the
// others.
func TestRemovalOfUnansweredResource(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(holdRemovals(gen(1, "l/x=1", "l/y=1")))
	m.slow = true
	m.set(holdRemovals(gen(2, "l/x=1", "l/y=1", "l/z=1")))
	m.server.SetGeneration(gen(3, "l/x=1"))
	m.catchUp()
	m.run()
	m.wantRuns("l/x=1")
}

// A rejected resource that disappears while removals are held was never accepted: when it
// comes back, it is sent.
func TestRejectedResourceIsRetriedAfterHeldRemoval(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "c/a=1", "e/a=1", "c/b=bad1", "e/b=1", "c/z=1", "e/z=1"))
	m.set(holdRemovals(gen(2, "c/a=2", "e/a=1")))
	m.got()
	m.set(gen(3, "c/a=2", "e/a=1"))
	m.wantLog("c-z")
	if st := m.status(ClusterType); st.Resources != 1 {
		t.Errorf("counted %d clusters", st.Resources)
	}
	m.set(gen(4, "c/a=2", "e/a=1", "c/b=bad1", "e/b=1"))
	if got := m.got(); got == "" {
		t.Error("it was not tried again")
	}
}

// Virtual hosts are sent behind their route configuration: before it they would be lost.
func TestVirtualHostsWaitForRouteConfiguration(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "l/x=1", "l/y=1", "r/y=1", "R/x=1", "v/x/a=1", "v/x/b=1"))
	m.set(gen(2, "l/x=1", "l/y=1", "r/y=1", "r/x=1"))
	m.connect(NewServer(ServerConfig{}))
	m.subscribeHosts() // Envoy does, on every stream after the first route configuration with VHDS
	m.set(gen(2, "l/x=1", "l/y=1", "r/y=1", "r/x=1"))
	m.slow = true // the answer to this one is late
	m.set(gen(3, "l/x=1", "l/y=1", "r/y=2", "r/x=1"))
	m.got()
	m.set(gen(4, "l/x=1", "l/y=1", "r/y=2", "R/x=1", "v/x/b=1"))
	m.wantLog("")
	m.catchUp()
	m.run()
	m.wantLog("r+x=1(vhds)", "v+x/b=1 v-x/a")
}

// Listed virtual hosts do not count after the peer has unsubscribed from their route
// configuration.
func TestListedHostsAreForgottenWithRouteConfiguration(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "l/x=1", "R/x=1", "v/x/a=1"))
	m.set(gen(2, "l/x=1", "r/x=1"))
	m.connect(NewServer(ServerConfig{}))
	m.subscribeHosts()
	m.set(gen(2, "l/x=1", "r/x=1"))
	m.set(gen(3))
	m.got()
	m.set(holdRemovals(gen(4, "l/x=1", "R/x=1", "v/x/b=1")))
	m.wantLog("l+x=1", "r+x=1(vhds)", "v+x/b=1")
	m.set(gen(5, "l/x=1", "R/x=1", "v/x/a=1", "v/x/b=1"))
	m.wantLog("v+x/a=1")
}

// Unacknowledged names are not lost if a stream ends before anything is sent on it.
func TestUnacknowledgedNamesSurviveStreamWithoutResponses(t *testing.T) {
	t.Parallel()
	s := NewServer(ServerConfig{Unacknowledged: map[TypeURL][]string{ClusterType: {"a"}, VirtualHostType: {"x/a"}}})
	for _, u := range []TypeURL{ClusterType, RouteType, VirtualHostType} {
		if err := s.Request(start, &discovery.DeltaDiscoveryRequest{TypeUrl: string(u)}); err != nil {
			t.Fatal(err)
		}
	}
	got := s.UnacknowledgedNames()
	if !slices.Equal(got[ClusterType], []string{"a"}) || !slices.Equal(got[VirtualHostType], []string{"x/a"}) {
		t.Errorf("remembered %v", got)
	}
}

// A resource in a response that is NACKed after a newer one was sent does not count as
// accepted.
func TestResourceCountAfterLateNack(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "l/x=1"))
	m.slow = true
	m.set(gen(2, "l/x=1", "l/y=bad1"))
	m.now = m.now.Add(DefaultGateTimeout + time.Second)
	m.set(gen(3, "l/x=1"))
	m.now = m.now.Add(DefaultGateTimeout + time.Second)
	m.run()
	m.catchUp()
	m.run()
	if st := m.status(ListenerType); st.Resources != 1 {
		t.Errorf("counted %d listeners", st.Resources)
	}
}

// The virtual hosts of a route configuration are sent in one response, however many they
// are: a domain may move from the first to the last of them.
func TestVirtualHostsOfRouteConfigurationAreNotSplit(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{MaxResponse: 3}))
	m.set(gen(1, "l/x=1", "R/x=1", "v/x/a=12345", "v/x/b=12345", "v/x/c=12345"))
	m.wantLog("l+x=1", "r+x=1(vhds)", "v+x/a=12345 v+x/b=12345 v+x/c=12345")
	m.set(gen(2, "l/x=1", "R/x=1", "v/x/a=22345", "v/x/c=22345", "v/x/d=22345"))
	m.wantLog("v+x/a=22345 v+x/c=22345 v+x/d=22345 v-x/b")
}

// Virtual hosts in flight are not sent again because their route configuration was to be
// inline for a moment.
func TestVirtualHostsInFlightAreSentOnce(t *testing.T) {
	t.Parallel()
	vhds := []string{"l/x=1", "R/x=1", "v/x/a=1", "v/x/b=1"}
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "l/x=1"))
	m.slow = true
	m.set(gen(2, vhds...))
	m.wantLog("l+x=1", "r-x", "r+x=1(vhds)", "v+x/a=1 v+x/b=1")
	m.server.SetGeneration(gen(3, "l/x=1", "r/x=2"))
	m.server.Status() // reconciles with this one
	m.set(gen(4, vhds...))
	m.catchUp()
	m.run()
	m.wantLog("")
}

// The peer rejects an inline route configuration: it keeps the virtual hosts that it has,
// and they are updated again when they are wanted.
func TestInlineRouteConfigurationIsRejected(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"bad1", "worse1"} {
		t.Run(bad, func(t *testing.T) {
			t.Parallel()
			m := newModel(t, NewServer(ServerConfig{}))
			m.set(gen(1, "l/x=1", "R/x=1", "v/x/a=1", "v/x/b=1"))
			m.set(gen(2, "l/x=1", "r/x="+bad))
			m.got()
			m.set(gen(3, "l/x=1", "R/x=1", "v/x/a=1", "v/x/b=2"))
			m.wantLog("v+x/a=1 v+x/b=2")
			m.set(gen(4, "l/x=1", "R/x=2", "v/x/a=2"))
			m.wantLog("r+x=2(vhds)", "v+x/a=2 v-x/b")
		})
	}
}

// A route configuration that waits for its first virtual host is rejected in its inline
// form: it does not wait any longer.
func TestInlineRouteConfigurationIsRejectedBeforeFirstHost(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"bad1", "worse1"} {
		t.Run(bad, func(t *testing.T) {
			t.Parallel()
			m := newModel(t, NewServer(ServerConfig{}))
			m.set(gen(1, "l/x=1"))
			m.server.SetGeneration(gen(2, "l/x=1", "R/x=1", "v/x/a=1"))
			m.receive(m.server.Next(m.now).Message()) // the route configuration
			if !m.waits["x"] {
				t.Fatal("no route configuration waits")
			}
			m.set(gen(3, "l/x=1", "r/x="+bad))
			if m.waits["x"] {
				t.Errorf("it waits forever\n%s", m.got())
			}
			m.got()
			m.set(gen(4, "l/x=1", "R/x=1", "v/x/a=1"))
			m.wantLog("v+x/a=1")
		})
	}
}

// Virtual hosts that were removed behind a rejected route configuration are still there
// when the next one comes, on this stream or another.
func TestHostsRemovedBehindRejectedRouteConfiguration(t *testing.T) {
	t.Parallel()
	for _, again := range []string{"same-stream", "next-stream"} {
		t.Run(again, func(t *testing.T) {
			t.Parallel()
			m := newModel(t, NewServer(ServerConfig{}))
			m.set(gen(1, "l/x=1", "R/x=1", "v/x/a=1", "v/x/b=1"))
			m.set(gen(2, "l/x=1", "r/x=1"))
			m.slow = true // the NACK comes when the hosts are on their way
			m.set(gen(3, "l/x=1", "R/x=bad2", "v/x/a=2"))
			m.catchUp()
			m.run()
			m.set(gen(4, "l/x=1", "r/x=2"))
			m.got()
			if again == "next-stream" {
				m.connect(NewServer(ServerConfig{Unacknowledged: m.server.UnacknowledgedNames()}))
				m.subscribeHosts()
				m.set(gen(4, "l/x=1", "r/x=2"))
				m.got()
			}
			m.set(gen(5, "l/x=1", "R/x=2", "v/x/a=2"))
			m.wantLog("r+x=2(vhds)", "v+x/a=2 v-x/b")
			if _, there := m.runs[VirtualHostType]["x/b"]; there {
				t.Error("a virtual host came back")
			}
			m.set(gen(6, "l/x=1", "r/x=2"))
			m.set(gen(7, "l/x=1", "R/x=3", "v/x/a=2"))
			m.wantLog("r+x=2", "r+x=3(vhds)", "v+x/a=2")
		})
	}
}

// Nothing waits for virtual hosts that are rejected after their route configuration was.
func TestHostsRejectedAfterRouteConfiguration(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "l/x=1", "R/x=1", "v/x/a=1", "v/x/b=1"))
	m.set(gen(2, "l/x=1", "r/x=1"))
	m.slow = true
	m.set(gen(3, "l/x=1", "R/x=bad2", "v/x/a=worse2", "v/x/b=2"))
	m.slow = false
	for _, answer := range m.lateAnswers {
		m.send(answer)
		m.run()
	}
	if st := m.status(VirtualHostType); st.Pending {
		t.Errorf("pending: %+v", st)
	}
}

// The type of virtual hosts converges with the answer to the removal for a peer that may
// wait for a first virtual host, although no route configuration has any.
func TestConvergedWithoutHostsToReconcile(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "l/x=1", "r/x=1"))
	m.connect(NewServer(ServerConfig{}))
	m.set(gen(2, "l/x=1", "r/x=bad1")) // which form it has instead is not known
	m.got()
	m.subscribeHosts()
	m.run()
	m.wantLog("v-x/none", "LOST x is 1")
	if st := m.status(VirtualHostType); st.Pending || st.ConvergedGeneration != 2 {
		t.Errorf("not converged: %+v", st)
	}
}

// Nothing waits for virtual hosts whose route configuration was unsubscribed.
func TestConvergedAfterRouteConfigurationUnsubscribed(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "l/x=1", "R/x=1", "v/x/a=1"))
	m.slow = true
	m.set(gen(2, "l/x=1", "R/x=1", "v/x/a=2"))
	m.set(gen(3))
	for range 2 { // the listener goes though that is not answered
		m.now = m.now.Add(DefaultGateTimeout + time.Second)
		m.run()
	}
	m.catchUp()
	m.run()
	if st := m.status(VirtualHostType); st.Pending || st.ConvergedGeneration != 3 {
		t.Errorf("not converged: %+v", st)
	}
}

// A response is NACKed after newer ones have replaced all its names but one: that name is
// not rejected for it.
func TestLateNackRejectsNoRemainingName(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "l/x=1", "l/y=1"))
	m.slow = true
	m.set(gen(2, "l/x=2", "l/y=worse1"))
	m.now = m.now.Add(DefaultGateTimeout + time.Second)
	m.set(gen(3, "l/x=2", "l/y=3"))
	m.now = m.now.Add(DefaultGateTimeout + time.Second)
	m.run()
	m.catchUp()
	m.run()
	m.wantRuns("l/x=2", "l/y=3")
}
