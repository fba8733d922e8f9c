package kv

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead/fairlead/registry/lastgood"
)

// testCut: a value that lost its end keeps what it lacks, over a restart, until it is whole, released or
// deleted; so does one with nothing in it, and one with an error that leaves open what it has.
func testCut(s store, cfg Config) {
	t := s.t
	cfg.StateDir = t.TempDir()
	whole := entry("a", "one") + entry("b", "one")
	put := func(r *running, value, fault string) {
		t.Helper()
		s.put("ab.yaml", value)
		r.awaitStatus(fault, func(*lastgood.Status) bool { return r.hasFault("consul-kv:"+s.prefix+"/ab.yaml:") && r.hasFault(fault) })
	}
	s.put("ab.yaml", whole)
	r := start(t, cfg)
	r.Await("a=one", "b=one")
	for value, fault := range map[string]string{
		strings.TrimRight(entry("a", "one"), "\n"): "error [FL0309]",
		"":                         "error [FL0150]",
		entry("a", "one") + "ap\n": "error [FL0105]",
		entry("a", "one") + strings.ReplaceAll(entry("b", "one"), "name: b", "name: B_"): "error [FL0106]",
	} {
		put(r, value, fault)
		r.Await("a=one", "b=one")
		r.Stop()
		r = start(t, cfg)
		r.Await("a=one", "b=one")
		r.awaitStatus(fault, func(*lastgood.Status) bool { return r.hasFault(fault) })
		r.Always("a=one", "b=one")
		s.put("ab.yaml", whole)
		r.awaitStatus("whole", func(st *lastgood.Status) bool { return len(st.Faults) == 0 })
	}
	put(r, strings.TrimRight(entry("a", "one"), "\n"), "error [FL0309]")
	if !r.Release() {
		t.Error("there is nothing to release")
	}
	r.Await("a=one")
	s.put("ab.yaml", whole)
	r.Await("a=one", "b=one")
	put(r, strings.TrimRight(entry("a", "one"), "\n"), "error [FL0309]")
	s.remove("ab.yaml")
	r.Await()
}

// testDamaged: where the saved versions are damaged, a prefix with an error is not delivered until the value
// is correct, or a person releases it.
func testDamaged(s store, cfg Config) {
	t := s.t
	cfg.StateDir = t.TempDir()
	s.put("a.yaml", entry("a", "one"))
	s.put("b.yaml", entry("b", "one"))
	r := start(t, cfg)
	r.Await("a=one", "b=one")
	r.Stop()
	shards, err := filepath.Glob(filepath.Join(cfg.StateDir, "consul-kv", url.PathEscape(r.Name()), "lastgood-*.json"))
	if err != nil || len(shards) == 0 {
		t.Fatalf("nothing is saved: %v", err)
	}
	for _, path := range shards {
		check(t, os.WriteFile(path, []byte("damaged"), 0o600))
	}
	s.put("a.yaml", entry("a", "two")+broken("x"))
	unknown := func(st *lastgood.Status) bool {
		return !st.Delivered && strings.Contains(st.Reason, "/a.yaml has an error") && strings.Contains(st.Reason, "fairlead release "+r.Name())
	}
	for range 2 {
		r = start(t, cfg)
		r.awaitStatus("unknown", unknown)
		r.Stop()
		if list, _ := r.History(); len(list) > 0 {
			t.Errorf("it sent %v", objects(list[0]))
		}
	}
	r = start(t, cfg)
	r.awaitStatus("unknown", unknown)
	if !r.Release() {
		t.Error("there is nothing to release")
	}
	r.Await("a=two", "b=one")
}
