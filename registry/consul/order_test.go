package consul

import (
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/consul/client"
)

// at is a time of a test, in seconds.
func at(seconds float64) time.Time {
	return time.Unix(1_000_000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

// entryOn is an entry of a service; the node's name is a letter and a number.
func entryOn(service, node string) *entry {
	return &entry{
		Node:    &entryNode{Node: node, Address: "10.0.0." + node[1:]},
		Service: &entryService{ID: service, Service: service, Port: 80, Weights: api.AgentWeights{Passing: 1, Warning: 1}},
	}
}

// answer is a reading of a service with an instance on each node.
func (l *loop) answer(service string, m client.Meta, nodes ...string) *reading {
	entries := make([]*entry, len(nodes))
	for i, node := range nodes {
		entries[i] = entryOn(service, node)
	}
	return l.s.newReading(service, entries, m)
}

// listedNow takes a list with these services, as the one that is followed gives it.
func (l *loop) listedNow(m client.Meta, now time.Time, services ...string) {
	names := listing{}
	for _, name := range services {
		names[name] = 0
	}
	l.gotNames(names, m, now)
}

// TestOlderAnswersAreIgnored: of two answers that overtook each other, the
// newer one holds, and the service is read again.
func TestOlderAnswersAreIgnored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, second client.Meta
		want          int // instances: the first answer has two, the second one
		again         bool
	}{
		"watch_after_reader":     {client.Meta{Generation: 2, Index: 101, Fresh: true, Asked: at(1)}, client.Meta{Generation: 2, Index: 100, Asked: at(0)}, 2, true},
		"reader_after_watch":     {client.Meta{Generation: 2, Index: 101, Asked: at(0)}, client.Meta{Generation: 2, Index: 100, Fresh: true, Asked: at(1)}, 2, true},
		"another_turn_before":    {client.Meta{Generation: 2, Index: 100, Asked: at(0)}, client.Meta{Generation: 1, Index: 200, Fresh: true, Asked: at(1)}, 2, true},
		"newer":                  {client.Meta{Generation: 2, Index: 100, Asked: at(0)}, client.Meta{Generation: 2, Index: 101, Asked: at(0)}, 1, false},
		"another_turn":           {client.Meta{Generation: 2, Index: 100, Asked: at(0)}, client.Meta{Generation: 3, Index: 50, Fresh: true, Asked: at(3)}, 1, false},
		"backwards_asked_later":  {client.Meta{Generation: 2, Index: 100, Asked: at(0)}, client.Meta{Generation: 2, Index: 50, Fresh: true, Asked: at(3)}, 1, false},
		"backwards_not_followed": {client.Meta{Generation: 2, Index: 100, Asked: at(0)}, client.Meta{Generation: 2, Index: 50, Asked: at(3)}, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newTestLoop(t, t.TempDir(), "")
			l.listedNow(client.Meta{Generation: 2, Index: 10}, at(0), "web")
			l.wasRead(task{name: "web"}, l.answer("web", c.first, "n1", "n2"), at(2))
			l.services["web"].wanted = readNone
			l.wasWatched(l.answer("web", c.second, "n1"), at(4))
			l.applyRemovals(at(3600), true, false)
			l.expectInstances(t, "web", c.want)
			if again := l.services["web"].wanted == readFull; again != c.again {
				t.Errorf("it is read again: %t, want %t", again, c.again)
			}
		})
	}
}

// TestOlderListsAreIgnored: a service that a newer list has is not lost for
// an older list.
func TestOlderListsAreIgnored(t *testing.T) {
	t.Parallel()
	older := client.Meta{Generation: 2, Index: 10, Fresh: true, Asked: at(0)}
	newer := client.Meta{Generation: 2, Index: 20, Asked: at(0)}
	for name, c := range map[string]struct {
		take  func(l *loop)
		want  bool
		again bool
	}{
		"of_a_reader": {func(l *loop) {
			l.relisting = true
			l.wasListed(listing{"api": 0}, older, nil, at(2))
		}, true, true},
		"of_the_follower": {func(l *loop) { l.gotNames(listing{"api": 0}, older, at(2)) }, true, true},
		"of_another_turn": {func(l *loop) {
			l.gotNames(listing{"api": 0}, client.Meta{Generation: 1, Index: 90, Asked: at(1)}, at(2))
		}, true, true},
		"of_the_next_turn": {func(l *loop) {
			l.gotNames(listing{"api": 0}, client.Meta{Generation: 3, Index: 5, Fresh: true, Asked: at(2)}, at(2))
		}, false, false},
		"restored_asked_late": {func(l *loop) {
			l.gotNames(listing{"api": 0}, client.Meta{Generation: 2, Index: 5, Fresh: true, Asked: at(2)}, at(2))
		}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newTestLoop(t, t.TempDir(), "")
			l.listedNow(newer, at(1), "api", "web")
			c.take(l)
			if _, listed := l.listed["web"]; listed != c.want {
				t.Errorf("web is listed: %t, want %t", listed, c.want)
			}
			if l.relist != c.again {
				t.Errorf("the list is read again: %t, want %t", l.relist, c.again)
			}
		})
	}
}

// TestRestoredFromAnOldSnapshot: indexes that went backwards for good make no
// answer an old one for ever.
func TestRestoredFromAnOldSnapshot(t *testing.T) {
	t.Parallel()
	l := newTestLoop(t, t.TempDir(), "")
	l.listedNow(client.Meta{Generation: 1, Index: 900, Asked: at(0)}, at(0), "web")
	l.wasRead(task{name: "web"}, l.answer("web", client.Meta{Generation: 1, Index: 900, Fresh: true, Asked: at(1)}, "n1", "n2"), at(2))
	// One that was asked before that answer came is dropped, and read again.
	l.wasRead(task{name: "web"}, l.answer("web", client.Meta{Generation: 1, Index: 400, Fresh: true, Asked: at(1.5)}, "n3"), at(3))
	l.expectInstances(t, "web", 2)
	if l.services["web"].wanted != readFull {
		t.Fatal("it is not read again")
	}
	l.wasRead(task{name: "web"}, l.answer("web", client.Meta{Generation: 1, Index: 400, Fresh: true, Asked: at(3.5)}, "n3"), at(4))
	l.applyRemovals(at(3600), true, false)
	l.expectInstances(t, "web", 1)
	if got := l.services["web"].index; got != 400 {
		t.Errorf("its index is %d, want 400", got)
	}
}
