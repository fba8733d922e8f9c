package kv

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/lastgood"
)

// TestCluster does to a cluster of three, with ACLs and TLS, what befalls one:
// nothing is ever lost, and in the end the source says what a fresh reading does.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := consultest.StartCluster(t, consultest.ClusterOptions{ACL: true, TLS: true})
	token := c.CreateToken(Rule("m", "read"))
	cfg := Config{Prefix: "m", RereadEvery: 3 * time.Second, StateDir: t.TempDir()}
	cfg.Client.Address, cfg.Client.CAFile, cfg.Client.TokenFile = c.Address(), c.CAFile, tokenFile(t, token.Secret)
	put := func(rel, host string) {
		t.Helper()
		deadline := time.Now().Add(patience)
		for {
			_, err := c.Client().KV().Put(&api.KVPair{Key: "m/" + rel + ".yaml", Value: []byte(entry(rel, host))}, nil)
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	put("a", "one")
	put("b", "one")
	r := start(t, cfg)
	r.Await("a=one", "b=one")

	dead := c.KillLeader()
	put("a", "two")
	r.Await("a=two", "b=one")
	dead.Start()

	snapshot := c.Snapshot()
	c.RestartAll()
	put("b", "two")
	r.Await("a=two", "b=two")

	c.Front().Cut()
	put("a", "three")
	r.awaitStatus("unavailable", unavailable)
	c.Front().Heal()
	r.Await("a=three", "b=two")

	c.Restore(snapshot) // with all of it, the index goes backwards
	r.Await("a=two", "b=one")
	put("a", "four")
	fresh := start(t, cfg.elsewhere(t))
	fresh.Await("a=four", "b=one")
	r.Await("a=four", "b=one")
	r.awaitStatus("ok", ok)
	list, _ := r.History()
	for i, f := range list {
		if len(f.Services) != 2 {
			t.Errorf("fragment %d has %v", i, objects(f))
		}
	}
}

// elsewhere is the same source with nothing on disk.
func (c Config) elsewhere(t *testing.T) Config {
	t.Helper()
	c.StateDir = t.TempDir()
	return c
}

// TestManyChanges: a thousand writes one after the other, and as many deletions,
// come to what is there in the end.
func TestManyChanges(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	s := storeOf(t, a, "m")
	r := start(t, at(a, "m"))
	var want []string
	for i := range 500 {
		rel := fmt.Sprintf("k%d.yaml", i%7)
		s.put(rel, entry(fmt.Sprintf("n%d", i%7), fmt.Sprintf("h%d", i)))
		if i%3 == 0 {
			s.remove(rel)
		}
	}
	for i := range 7 {
		s.put(fmt.Sprintf("k%d.yaml", i), entry(fmt.Sprintf("n%d", i), "last"))
		want = append(want, fmt.Sprintf("n%d=last", i))
	}
	slices.Sort(want)
	r.Await(want...)
	r.awaitStatus("ok", func(st *lastgood.Status) bool { return ok(st) && len(st.Faults) == 0 })
}
