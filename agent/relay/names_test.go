package relay

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// fakeTable is the agent's half.
type fakeTable struct {
	has    map[string]string
	absent int
}

func (f *fakeTable) Update(changed []*stream.Resource, removed []string, whole bool) (refused []stream.RejectedResource) {
	if was := f.has; whole || was == nil {
		f.has = map[string]string{}
		defer func() {
			for _, r := range refused {
				if old, ok := was[r.Name]; ok {
					f.has[r.Name] = old
				}
			}
		}()
	}
	for _, r := range changed {
		if strings.HasPrefix(string(r.Body), "bad") {
			refused = append(refused, stream.RejectedResource{Name: r.Name, Reason: "it is no domain"})
			continue
		}
		f.has[r.Name] = string(r.Body)
	}
	for _, name := range removed {
		delete(f.has, name)
	}
	return refused
}

func (f *fakeTable) Absent() { f.absent++ }

// withNames are resources with names: pairs of name and body.
func withNames(t *testing.T, pairs ...string) resources {
	t.Helper()
	out := resourcesOf(t, newShop(t).messages("one"))
	list := []*stream.Resource{stream.NewResource(bootstrap.NameType, stream.Resource{Name: bootstrap.NameTable, Version: "1", Body: []byte("table")})}
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, stream.NewResource(bootstrap.NameType, stream.Resource{Name: pairs[i], Version: pairs[i+1], Body: []byte(pairs[i+1])}))
	}
	out[bootstrap.NameType] = stream.NewSet(list)
	return out
}

func (g *rig) namesSent() (sent []string) {
	for _, e := range g.events {
		if e.Kind == stream.EventSent && e.Type == bootstrap.NameType && e.Names > 0 {
			sent = append(sent, e.Type.Short())
		}
	}
	g.events = nil
	return sent
}

// TestNames: the agent gets each change, whatever Envoy does; it is stored, and no Envoy gets it. A
// control plane without names takes nothing away, and the next one with names replaces all.
func TestNames(t *testing.T) {
	t.Parallel()
	table := &fakeTable{}
	g := newRigWith(t, 40, table)
	g.silent = true // no Envoy answers anything
	g.serve(withNames(t, "a.lab", "a1", "b.lab", "b1", "c.lab", "c1"))
	want := func(pairs ...string) {
		t.Helper()
		m := map[string]string{bootstrap.NameTable: "table"}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		if !maps.Equal(table.has, m) {
			t.Errorf("the agent has %v, want %v", table.has, m)
		}
		stored := map[string]string{}
		for r := range g.core.everything()[bootstrap.NameType].All() {
			stored[r.Name] = string(r.Body)
		}
		if !maps.Equal(stored, m) {
			t.Errorf("to be stored: %v, want %v", stored, m)
		}
	}
	want("a.lab", "a1", "b.lab", "b1", "c.lab", "c1")
	g.serve(withNames(t, "a.lab", "a2", "b.lab", "bad", "d.lab", "d1"))
	want("a.lab", "a2", "b.lab", "b1", "c.lab", "c1", "d.lab", "d1") // removals come when Envoy has everything
	g.silent = false
	g.run()
	want("a.lab", "a2", "b.lab", "b1", "d.lab", "d1")
	if i := slices.IndexFunc(g.server.Status(), func(s stream.TypeStatus) bool {
		return s.Type == bootstrap.NameType && len(s.Rejected) == 1 && s.Rejected[0].Name == "b.lab"
	}); i < 0 {
		t.Errorf("the server does not know what the agent rejects: %+v", g.server.Status())
	}
	g.envoy.Subscribe(bootstrap.NameType, "a.lab") // as no Envoy does
	g.run()
	for k := range g.has {
		if k.url == bootstrap.NameType {
			t.Errorf("Envoy has %s", k.name)
		}
	}

	g.reconnect()
	g.serve(resourcesOf(t, newShop(t).messages("one"))) // an earlier release
	want("a.lab", "a2", "b.lab", "b1", "d.lab", "d1")
	if table.absent == 0 {
		t.Error("the agent does not know that there are no names")
	}
	g.reconnect()
	g.serve(withNames(t, "a.lab", "a2", "b.lab", "b2"))
	want("a.lab", "a2", "b.lab", "b2")
	g.serve(withNames(t))
	want()
	g.serve(withNames(t, "a.lab", "a3"))
	want("a.lab", "a3")
}

// TestNamesOutliveTheServer: a relay that starts from its store has the names, and is sent nothing
// again. One that answers no queries keeps none.
func TestNamesOutliveTheServer(t *testing.T) {
	t.Parallel()
	g := newRigWith(t, 40, &fakeTable{})
	of := withNames(t, "a.lab", "a1")
	g.serve(of)
	path := filepath.Join(t.TempDir(), "store")
	if _, err := writeStore(path, g.stored[len(g.stored)-1]); err != nil {
		t.Fatal(err)
	}
	stored, err := readStore(path)
	g.must(err)
	restart := func(names NameTable) {
		g.names, g.peer, g.server = names, nil, stream.NewServer(stream.ServerConfig{})
		g.start(stored)
	}
	table := &fakeTable{}
	restart(table)
	if table.has["a.lab"] != "a1" {
		t.Errorf("without a server the agent has %v", table.has)
	}
	g.join(40)
	g.core.client.Open()
	g.events = nil
	g.serve(of)
	if sent := g.namesSent(); len(sent) > 0 || table.absent > 0 || table.has["a.lab"] != "a1" {
		t.Errorf("sent again: %v; the agent has %v", sent, table.has)
	}

	restart(nil)
	g.join(40)
	g.core.client.Open()
	g.serve(of)
	if n := g.core.everything()[bootstrap.NameType].Len(); n > 0 || len(g.namesSent()) > 0 {
		t.Errorf("an agent that answers no queries keeps %d names", n)
	}
}
