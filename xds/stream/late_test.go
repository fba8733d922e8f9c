package stream

import (
	"slices"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

func hold(g *Generation) *Generation {
	g.HoldRemovals = true
	return g
}

// What is on its way when removals are allowed again is removed like the rest.
func TestRemovedWhileOnItsWay(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(hold(gen(1, "l/x=1", "l/y=1")))
	m.slow = true
	m.set(hold(gen(2, "l/x=1", "l/y=1", "l/z=1")))
	m.server.SetGeneration(gen(3, "l/x=1"))
	m.catchUp()
	m.run()
	m.wantRuns("l/x=1")
}

// A refused resource that left while nothing may be removed has not been taken:
// when it comes again, it is sent.
func TestRefusedLeavesAndReturnsWhileHeld(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "c/a=1", "e/a=1", "c/b=bad1", "e/b=1", "c/z=1", "e/z=1"))
	m.set(hold(gen(2, "c/a=2", "e/a=1")))
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

// Virtual hosts wait for their table: before it they are lost.
func TestHostsWaitForTheirTable(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "l/x=1", "l/y=1", "r/y=1", "R/x=1", "v/x/a=1", "v/x/b=1"))
	m.set(gen(2, "l/x=1", "l/y=1", "r/y=1", "r/x=1"))
	m.connect(NewServer(ServerConfig{}))
	m.askHosts() // Envoy does, on every stream after the first such table
	m.set(gen(2, "l/x=1", "l/y=1", "r/y=1", "r/x=1"))
	m.slow = true // the answer to this one is late
	m.set(gen(3, "l/x=1", "l/y=1", "r/y=2", "r/x=1"))
	m.got()
	m.set(gen(4, "l/x=1", "l/y=1", "r/y=2", "R/x=1", "v/x/b=1"))
	m.wantLog("")
	m.catchUp()
	m.run()
	m.wantLog("r+x=1(shell)", "v+x/b=1 v-x/a")
}

// What a peer listed of a table that it has given up since does not count.
func TestListedIsGivenUpWithItsTable(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "l/x=1", "R/x=1", "v/x/a=1"))
	m.set(gen(2, "l/x=1", "r/x=1"))
	m.connect(NewServer(ServerConfig{}))
	m.askHosts()
	m.set(gen(2, "l/x=1", "r/x=1"))
	m.set(gen(3))
	m.got()
	m.set(hold(gen(4, "l/x=1", "R/x=1", "v/x/b=1")))
	m.wantLog("l+x=1", "r+x=1(shell)", "v+x/b=1")
	m.set(gen(5, "l/x=1", "R/x=1", "v/x/a=1", "v/x/b=1"))
	m.wantLog("v+x/a=1")
}

// Doubts are not lost by a stream that ends before it is sent anything.
func TestDoubtsOutliveAStreamThatSeesNothing(t *testing.T) {
	t.Parallel()
	s := NewServer(ServerConfig{Distrust: map[TypeURL][]string{ClusterType: {"a"}, VirtualHostType: {"x/a"}}})
	for _, u := range []TypeURL{ClusterType, RouteType, VirtualHostType} {
		if err := s.Request(start, &discovery.DeltaDiscoveryRequest{TypeUrl: string(u)}); err != nil {
			t.Fatal(err)
		}
	}
	got := s.Unknown()
	if !slices.Equal(got[ClusterType], []string{"a"}) || !slices.Equal(got[VirtualHostType], []string{"x/a"}) {
		t.Errorf("remembered %v", got)
	}
}

// A refusal that comes late, when something newer has been sent, is not counted
// as taken.
func TestCountAfterALateRefusal(t *testing.T) {
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

// The virtual hosts of a table are not spread over responses, however many they
// are: a domain may move from the first to the last of them.
func TestHostsOfATableTravelTogether(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{MaxResponse: 3}))
	m.set(gen(1, "l/x=1", "R/x=1", "v/x/a=12345", "v/x/b=12345", "v/x/c=12345"))
	m.wantLog("l+x=1", "r+x=1(shell)", "v+x/a=12345 v+x/b=12345 v+x/c=12345")
	m.set(gen(2, "l/x=1", "R/x=1", "v/x/a=22345", "v/x/c=22345", "v/x/d=22345"))
	m.wantLog("v+x/a=22345 v+x/c=22345 v+x/d=22345 v-x/b")
}

// Virtual hosts on their way are not sent once more because their table was to
// come whole for a moment.
func TestHostsOnTheirWayAreSentOnce(t *testing.T) {
	t.Parallel()
	pieces := []string{"l/x=1", "R/x=1", "v/x/a=1", "v/x/b=1"}
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "l/x=1"))
	m.slow = true
	m.set(gen(2, pieces...))
	m.wantLog("l+x=1", "r-x", "r+x=1(shell)", "v+x/a=1 v+x/b=1")
	m.server.SetGeneration(gen(3, "l/x=1", "r/x=2"))
	m.server.Status() // it has seen this one
	m.set(gen(4, pieces...))
	m.catchUp()
	m.run()
	m.wantLog("")
}

// A table is refused whole: the peer goes on with the virtual hosts that it has,
// and they are kept up to date again when they are wanted.
func TestWholeTableIsRefused(t *testing.T) {
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
			m.wantLog("r+x=2(shell)", "v+x/a=2 v-x/b")
		})
	}
}

// A table that waits for its first virtual host is refused whole: it waits no
// longer.
func TestWholeTableIsRefusedWhileHostsAreAwaited(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"bad1", "worse1"} {
		t.Run(bad, func(t *testing.T) {
			t.Parallel()
			m := newModel(t, NewServer(ServerConfig{}))
			m.set(gen(1, "l/x=1"))
			m.server.SetGeneration(gen(2, "l/x=1", "R/x=1", "v/x/a=1"))
			m.take(m.server.Next(m.now).Message()) // the table
			if !m.waits["x"] {
				t.Fatal("no table waits")
			}
			m.set(gen(3, "l/x=1", "r/x="+bad))
			if m.waits["x"] {
				t.Errorf("it waits for ever\n%s", m.got())
			}
			m.got()
			m.set(gen(4, "l/x=1", "R/x=1", "v/x/a=1"))
			m.wantLog("v+x/a=1")
		})
	}
}

// Virtual hosts that were removed behind a table which was refused are still
// there when the next one comes, on this stream or another.
func TestRemovedBehindARefusedTable(t *testing.T) {
	t.Parallel()
	for _, again := range []string{"same-stream", "next-stream"} {
		t.Run(again, func(t *testing.T) {
			t.Parallel()
			m := newModel(t, NewServer(ServerConfig{}))
			m.set(gen(1, "l/x=1", "R/x=1", "v/x/a=1", "v/x/b=1"))
			m.set(gen(2, "l/x=1", "r/x=1"))
			m.slow = true // the refusal comes when the hosts are on their way
			m.set(gen(3, "l/x=1", "R/x=bad2", "v/x/a=2"))
			m.catchUp()
			m.run()
			m.set(gen(4, "l/x=1", "r/x=2"))
			m.got()
			if again == "next-stream" {
				m.connect(NewServer(ServerConfig{Distrust: m.server.Unknown()}))
				m.askHosts()
				m.set(gen(4, "l/x=1", "r/x=2"))
				m.got()
			}
			m.set(gen(5, "l/x=1", "R/x=2", "v/x/a=2"))
			m.wantLog("r+x=2(shell)", "v+x/a=2 v-x/b")
			if _, there := m.runs[VirtualHostType]["x/b"]; there {
				t.Error("a virtual host came back")
			}
			m.set(gen(6, "l/x=1", "r/x=2"))
			m.set(gen(7, "l/x=1", "R/x=3", "v/x/a=2"))
			m.wantLog("r+x=2", "r+x=3(shell)", "v+x/a=2")
		})
	}
}

// Virtual hosts that are refused after their table was are not waited for.
func TestHostsAreRefusedAfterTheirTable(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "l/x=1", "R/x=1", "v/x/a=1", "v/x/b=1"))
	m.set(gen(2, "l/x=1", "r/x=1"))
	m.slow = true
	m.set(gen(3, "l/x=1", "R/x=bad2", "v/x/a=worse2", "v/x/b=2"))
	m.slow = false
	for _, answer := range m.late {
		m.do(answer)
		m.run()
	}
	if st := m.status(VirtualHostType); st.Pending {
		t.Errorf("pending: %+v", st)
	}
}

// All virtual hosts are settled once the answer is in to the removal that a peer
// gets which may be waiting for a first one, though no table has any to look at.
func TestSettledWithoutALook(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "l/x=1", "r/x=1"))
	m.connect(NewServer(ServerConfig{}))
	m.set(gen(2, "l/x=1", "r/x=bad1")) // which form it has instead is not known
	m.got()
	m.askHosts()
	m.run()
	m.wantLog("v-x/none", "LOST x is 1")
	if st := m.status(VirtualHostType); st.Pending || st.SettledGeneration != 2 {
		t.Errorf("not settled: %+v", st)
	}
}

// Nobody waits for the answer of a table's virtual hosts when the table has been
// given up.
func TestSettledWithoutTheTable(t *testing.T) {
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
	if st := m.status(VirtualHostType); st.Pending || st.SettledGeneration != 3 {
		t.Errorf("not settled: %+v", st)
	}
}

// A response is refused late, when something newer has replaced all of it but one
// name: that one is not at fault for being left.
func TestTheLastLeftIsNotAtFault(t *testing.T) {
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
