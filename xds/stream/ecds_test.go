package stream

import (
	"slices"
	"testing"
)

// newExtendedModel is a peer each of whose listeners names an extension.
func newExtendedModel(t *testing.T, s *Server) *model {
	t.Helper()
	m := newModel(t, s)
	m.extends = true
	return m
}

// Extensions are served behind clusters, to which they may refer, and before listeners that
// name them; at first Envoy asks for them when it has such a listener.
func TestExtensionsAreServedBeforeListeners(t *testing.T) {
	t.Parallel()
	m := newExtendedModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "c/a=1", "e/a=1", "l/x=1", "x/x=1", "r/x=1"))
	m.wantLog("c+a=1", "e+a=1", "l+x=1", "x+x=1", "r+x=1")
	m.set(gen(2, "c/a=2", "e/a=2", "l/x=2", "x/x=2", "r/x=2"))
	m.wantLog("c+a=2", "e+a=2", "x+x=2", "l+x=2", "r+x=2")
	m.set(gen(3, "c/a=2", "e/a=2", "l/x=2", "x/x=3", "r/x=2"))
	m.wantLog("x+x=3")
}

// A listener waits for the answer to extensions that were sent before it, as for clusters.
func TestListenersWaitForExtensions(t *testing.T) {
	t.Parallel()
	m := newExtendedModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "c/a=1", "e/a=1", "l/x=1", "x/x=1"))
	m.got()
	m.slow = true
	m.set(gen(2, "c/a=1", "e/a=1", "l/x=2", "x/x=2"))
	m.wantLog("x+x=2")
	m.catchUp()
	m.run()
	m.wantLog("l+x=2")
	m.mute[ExtensionType] = true
	m.set(gen(3, "c/a=1", "e/a=1", "l/x=3", "x/x=3"))
	m.wantLog("x+x=3")
	m.now = m.now.Add(DefaultGateTimeout)
	m.run()
	m.wantLog("l+x=3")
}

// Each extension has a response of its own, without waiting for the others.
func TestExtensionsAreSentOneByOne(t *testing.T) {
	t.Parallel()
	m := newExtendedModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "l/x=1", "l/y=1", "l/z=1", "x/x=1", "x/y=1", "x/z=1", "r/x=1", "r/y=1", "r/z=1"))
	m.got()
	m.slow = true
	m.set(gen(2, "l/x=2", "l/y=1", "l/z=1", "x/x=2", "x/y=bad", "x/z=2", "r/x=1", "r/y=1", "r/z=1"))
	m.wantLog("x+x=2", "x+y=bad", "x+z=2")
	m.catchUp()
	m.run()
	m.wantLog("x+y=1", "l+x=2")
}

// Extensions without any configuration are sent behind all others: what moves from one to another is
// never in none.
func TestEmptyExtensionsAreSentLast(t *testing.T) {
	t.Parallel()
	const name, config = "\x0a\x01n", "\x12\x05\x0a\x03url"
	for body, want := range map[string]bool{
		name + config: true, name + "\x12\x07\x0a\x03url\x12\x00": true, name + "\x12\x08\x0a\x03url\x12\x01r": false, "1": false,
	} {
		if got := isEmptyExtension([]byte(body)); got != want {
			t.Errorf("%q is empty: %v, want %v", body, got, want)
		}
	}
	resource := func(name, body string) *Resource { return &Resource{Name: name, Version: body, Body: []byte(body)} }
	rules := name + "\x12\x08\x0a\x03url\x12\x01r"
	list := []*Resource{resource("x/a", name+config), resource("x/b", rules), resource("x/c", name+config), resource("x/d", rules)}
	var got []string
	for _, r := range emptyLast(list) {
		got = append(got, r.Name)
	}
	if want := []string{"x/b", "x/d", "x/a", "x/c"}; !slices.Equal(got, want) || list[0].Name != "x/a" {
		t.Errorf("they are sent as %q, want %q", got, want)
	}
}

// An extension waits for clusters, to which it may refer.
func TestExtensionsWaitForClusters(t *testing.T) {
	t.Parallel()
	m := newExtendedModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "c/a=1", "e/a=1", "l/x=1", "x/x=1"))
	m.got()
	m.mute[ClusterType] = true
	m.set(gen(2, "c/a=2", "e/a=1", "l/x=1", "x/x=2"))
	m.wantLog("c+a=2", "e+a=1")
}

// An extension that the target has no more stays with the peer until it unsubscribes, which
// Envoy does when the last listener that names it has drained. After that the stream shares
// its state with all others again.
func TestExtensionIsKeptUntilUnsubscribed(t *testing.T) {
	t.Parallel()
	for _, names := range []struct{ with, without []string }{
		{[]string{"l/x=1", "x/x=1", "l/y=1", "x/y=1"}, []string{"l/y=1", "x/y=1"}},
		{[]string{"l/x=1", "x/x=1"}, nil},
		{[]string{"l/x=1", "x/x=1", "l/y=1", "x/y=1"}, []string{"l/y=1", "x/y=2"}},
	} {
		s := NewServer(ServerConfig{})
		m := newExtendedModel(t, s)
		m.drains, m.draining = true, map[string]bool{}
		m.set(gen(1, names.with...))
		g := gen(2, names.without...)
		m.set(g)
		if m.runs[ExtensionType]["x"] != "1" || len(m.draining) == 0 {
			t.Errorf("%v: the peer has %v", names.without, m.runs[ExtensionType])
		}
		if st := m.status(ExtensionType); st.Pending || st.Resources != len(m.runs[ExtensionType]) || st.ConvergedGeneration != 2 {
			t.Errorf("status %+v", st)
		}
		// Another server leaves it alone, too.
		s = NewServer(ServerConfig{})
		m.connect(s)
		m.set(g)
		if m.runs[ExtensionType]["x"] != "1" || m.status(ExtensionType).Pending {
			t.Errorf("%v: after a reconnect the peer has %v", names.without, m.runs[ExtensionType])
		}
		m.drain()
		m.run()
		x := s.typeOf(ExtensionType)
		if x.pending != nil || x.have != x.want || x.have != nil && x.have.private || x.count != len(m.runs[ExtensionType]) {
			t.Errorf("%v: the state is not shared: %+v", names.without, x.subscriptionState)
		}
	}
}

// The answer that an extension does not exist is sent, as Envoy and relays may wait for it,
// but not while it may only be unknown yet.
func TestMissingExtensionIsAnswered(t *testing.T) {
	t.Parallel()
	m := newExtendedModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "l/x=1", "r/x=1"))
	m.wantLog("l+x=1", "r+x=1", "x-x")
	m.set(gen(2, "l/x=1", "x/x=1", "r/x=1"))
	m.wantLog("x+x=1")

	m = newExtendedModel(t, NewServer(ServerConfig{}))
	m.set(holdRemovals(gen(1, "l/x=1", "r/x=1")))
	m.wantLog("l+x=1", "r+x=1")
	m.set(gen(2, "l/x=1", "r/x=1"))
	m.wantLog("x-x")
	if st := m.status(ExtensionType); st.Pending || st.Resources != 0 {
		t.Errorf("status %+v", st)
	}
}

// Of a rejected extension the version that was accepted last is sent again: a listener that
// Envoy replaces later would get the rejected one otherwise. One that was never accepted is
// removed, so that Envoy forgets it: it would ACK it if it were sent again.
func TestRejectedExtension(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"bad", "worse"} {
		m := newExtendedModel(t, NewServer(ServerConfig{}))
		m.set(gen(1, "l/x=1", "x/x=1", "l/y=1", "x/y=1"))
		m.set(gen(2, "l/x=1", "x/x="+bad, "l/y=1", "x/y=2"))
		if m.runs[ExtensionType]["x"] != "1" || m.runs[ExtensionType]["y"] != "2" {
			t.Errorf("%s: runs %v", bad, m.runs[ExtensionType])
		}
		st := m.status(ExtensionType)
		if len(st.Rejected) != 1 || st.Rejected[0].Name != "x" || st.Unknown != 0 || st.Pending {
			t.Errorf("%s: %+v", bad, st)
		}

		m = newExtendedModel(t, NewServer(ServerConfig{}))
		m.set(gen(1, "l/x=1", "x/x="+bad, "r/x=1"))
		m.wantLog("l+x=1", "x+x="+bad, "r+x=1", "x-x")
		if st := m.status(ExtensionType); len(st.Rejected) != 1 || st.Unknown != 0 || st.Pending {
			t.Errorf("%s at first: %+v", bad, st)
		}
		m.set(gen(2, "l/x=1", "x/x=2", "r/x=1"))
		m.wantLog("x+x=2")
		if st := m.status(ExtensionType); len(st.Rejected) != 0 || st.NackedGeneration != 0 || st.LastError != "" {
			t.Errorf("%s, then good: %+v", bad, st)
		}
	}
}
