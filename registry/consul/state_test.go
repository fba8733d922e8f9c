package consul

import (
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/consul/mapping"
)

// newTestLoop is the loop of a source that asks nobody, of a state directory.
func newTestLoop(t testing.TB, dir, datacenter string) *loop {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	m, err := mapping.New(mapping.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Logger: log, Mapper: m, Client: client.Config{Address: "h:1", Datacenter: datacenter}, StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.stateWriter.store.open(); err != nil {
		t.Fatal(err)
	}
	l := newLoop(s, nil)
	l.restore()
	return l
}

// givenAnswer takes an answer of a service that has an instance on each node.
func (l *loop) givenAnswer(service string, filtered bool, nodes ...string) {
	entries := make([]*entry, len(nodes))
	for i, node := range nodes {
		entries[i] = &entry{
			Node:    &entryNode{Node: node, Address: "10.0.0." + node[1:]},
			Service: &entryService{ID: service, Service: service, Port: 80, Weights: api.AgentWeights{Passing: 1, Warning: 1}},
		}
	}
	now := time.Now()
	l.setListing(listing{service: 0}, client.Meta{Generation: 1, Index: 50}, now)
	l.accept(l.s.newReading(service, entries, client.Meta{Generation: 1, Index: 100, Filtered: filtered}), now)
	l.applyRemovals(now.Add(time.Hour), true, false)
}

// writeAll writes what is to survive.
func (l *loop) writeAll() {
	l.liveEver, l.live = true, true
	l.save(time.Now(), true)
	l.s.stateWriter.Flush()
}

func (l *loop) expectInstances(t *testing.T, service string, instances int) {
	t.Helper()
	got := 0
	if svc := l.services[service]; svc != nil {
		got = svc.instances
	}
	if got != instances {
		t.Errorf("%s has %d instances, want %d", service, got, instances)
	}
}

// TestHeldEntriesSurviveRestart: what stays because the token may not see it any more
// stays after a restart, too.
func TestHeldEntriesSurviveRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := newTestLoop(t, dir, "")
	l.givenAnswer("web", false, "n1", "n2", "n3")
	l.givenAnswer("web", true, "n1") // n2 and n3 are hidden
	l.expectInstances(t, "web", 3)
	l.writeAll()
	for range 2 {
		l = newTestLoop(t, dir, "")
		l.expectInstances(t, "web", 3)
		l.givenAnswer("web", true, "n1")
		l.expectInstances(t, "web", 3)
		l.writeAll()
	}
	l.givenAnswer("web", false, "n1", "n2") // everything is seen again
	l.writeAll()
	l = newTestLoop(t, dir, "")
	l.givenAnswer("web", true, "n1", "n2")
	l.givenAnswer("web", true, "n1") // seen to go, by who sees not everything
	l.expectInstances(t, "web", 1)
}

// TestAnotherDatacenter: nothing of one datacenter comes back as another's.
func TestAnotherDatacenter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := newTestLoop(t, dir, "dc1")
	l.givenAnswer("web", false, "n1")
	l.writeAll()
	l = newTestLoop(t, dir, "dc2")
	l.expectInstances(t, "web", 0)
	l.givenAnswer("api", false, "n1")
	l.writeAll()
	l = newTestLoop(t, dir, "dc2")
	l.expectInstances(t, "web", 0)
	l.expectInstances(t, "api", 1)
}

// TestDamageIsReportedOnce: a damaged file is written anew, also where it has no
// service any more.
func TestDamageIsReportedOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := newTestLoop(t, dir, "")
	l.givenAnswer("web", false, "n1")
	l.writeAll()
	other := (shardOf("web") + 1) % shards
	if err := os.WriteFile(l.s.stateWriter.store.path(other), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	l = newTestLoop(t, dir, "")
	if l.stateFault == "" {
		t.Error("the damage is not reported")
	}
	l.writeAll()
	l = newTestLoop(t, dir, "")
	if l.stateFault != "" {
		t.Error("it is reported again: " + l.stateFault)
	}
	l.expectInstances(t, "web", 1)
	if names, _ := os.ReadDir(l.s.stateWriter.store.dir); !slices.ContainsFunc(names, func(e os.DirEntry) bool { return e.Name() == "picture.json" }) {
		t.Error("the catalog has no mark")
	}
}
