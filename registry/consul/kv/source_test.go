package kv

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/lastgood"
)

// TestReading is what a source does while Consul is there.
func TestReading(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	for name, test := range map[string]func(store, Config){
		"follows":       testFollows,
		"broken":        testBroken,
		"twice":         testTwice,
		"transaction":   testTransaction,
		"bound":         testBound,
		"values":        testValues,
		"restart":       testRestart,
		"cut":           testCut,
		"damaged":       testDamaged,
		"lost_meantime": testLostMeantime,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(storeOf(t, a, "fairlead/"+name), at(a, "/fairlead/"+name+"/"))
		})
	}
}

func testFollows(s store, cfg Config) {
	t := s.t
	r := start(t, cfg)
	r.Await()
	st := r.awaitStatus("ok", ok)
	if !st.Delivered || !r.hasFault("warning [FL0306]: there is no manifest below \"fairlead/follows/\"") {
		t.Errorf("an empty prefix is reported as %+v", st)
	}
	if !strings.Contains(r.logs.String(), "FL0306") {
		t.Error("an empty prefix is not logged")
	}
	s.put("a.yaml", entry("a", "one"))
	first := r.Await("a=one")
	if at := first.Services[0].Origin; at.String() != "consul-kv:fairlead/follows/a.yaml:1:1" || at.Source != "consul-kv" {
		t.Errorf("it is said to be at %s of %s", at, at.Source)
	}
	s.put("sub/dir/b.yml", entry("b", "one"))
	two := r.Await("a=one", "b=one")
	if two.Services[0] != first.Services[0] {
		t.Error("what did not change is another pointer")
	}
	s.put("a.yaml", entry("a", "two"))
	r.Await("a=two", "b=one")
	// What is none of ours: a neighbour, a note, a hidden key, the folder's own.
	neighbour := s
	neighbour.prefix += "-not"
	neighbour.put("x.yaml", entry("x", "one"))
	s.put("README.md", "x")
	s.put(".hidden.yaml", entry("x", "one"))
	s.put("sub/.git/x.yaml", entry("x", "one"))
	s.put("", "")
	r.awaitStatus("ignoring", func(st *lastgood.Status) bool { return st.Ignored == 4 && st.Files == 2 })
	s.remove("a.yaml")
	r.Await("b=one")
	r.awaitReadings(2) // of looks that found the same
	if st := r.Status(); st.State != lastgood.OK || st.Read.IsZero() || st.FromDisk || len(st.Faults) > 0 {
		t.Errorf("status %+v", st)
	}
	if st := r.Status(); st.Counters.Decodes != 3 {
		t.Errorf("%d decodings for three values", st.Counters.Decodes)
	}
}

func testBroken(s store, cfg Config) {
	t := s.t
	s.put("a.yaml", entry("a", "one")+entry("b", "one"))
	s.put("z.yaml", entry("z", "one"))
	r := start(t, cfg)
	r.Await("a=one", "b=one", "z=one")
	s.put("a.yaml", entry("a", "two")+broken("b"))
	r.Await("a=two", "b=one", "z=one")
	key := "consul-kv:fairlead/broken/a.yaml"
	if !r.hasFault(key+":9:8: error") || !r.hasFault("stays in force until you fix the object or remove it from this key") {
		t.Errorf("faults: %v", r.Status().Faults)
	}
	s.put("a.yaml", "]")
	r.awaitStatus("keeping", func(st *lastgood.Status) bool { return len(st.Kept) == 2 })
	// a turns up under another key, and that one counts, also once it is gone.
	s.put("c.yaml", entry("a", "four"))
	r.Await("a=four", "b=one", "z=one")
	s.remove("c.yaml")
	r.Await("b=one", "z=one")
	s.put("a.yaml", entry("b", "three"))
	r.Await("b=three", "z=one")
	r.awaitStatus("fixed", func(st *lastgood.Status) bool { return len(st.Kept)+len(st.Faults) == 0 })
	r.Always("z=one")
}

func testTwice(s store, cfg Config) {
	t := s.t
	s.put("b.yaml", entry("x", "two"))
	s.put("c.yaml", entry("x", "three"))
	r := start(t, cfg)
	r.Await("x=two")
	b, c := "consul-kv:fairlead/twice/b.yaml", "consul-kv:fairlead/twice/c.yaml"
	if !r.hasFault(c + ":1:1: error [FL0301] ServiceEntry default/x: defined twice, at " + b + ":1:1 and at " + c +
		":1:1: the first by key, " + b + ":1:1, is in force; remove one of them") {
		t.Errorf("faults: %v", r.Status().Faults)
	}
	s.remove("b.yaml")
	r.Await("x=three")
}

// testTransaction moves objects between keys in one transaction; nobody sees
// half of it.
func testTransaction(s store, cfg Config) {
	t := s.t
	names := func(host string) (value string, want []string) {
		var all strings.Builder
		for i := range 20 {
			name := fmt.Sprintf("o%02d", i)
			all.WriteString(entry(name, host))
			want = append(want, name+"="+host)
		}
		return all.String(), want
	}
	value, want := names("h0")
	s.put("k0.yaml", value)
	r := start(t, cfg)
	r.Await(want...)
	for i := range 10 {
		value, want = names(fmt.Sprintf("h%d", i+1))
		key := func(n int) string { return fmt.Sprintf("%s/k%d.yaml", s.prefix, n) }
		done, answer, _, err := s.txn.Txn(api.TxnOps{
			{KV: &api.KVTxnOp{Verb: api.KVDelete, Key: key(i)}},
			{KV: &api.KVTxnOp{Verb: api.KVSet, Key: key(i + 1), Value: []byte(value)}},
		}, nil)
		if err != nil || !done {
			t.Fatal(answer, err)
		}
	}
	r.Await(want...)
	list, _ := r.History()
	for i, f := range list {
		hosts := map[string]bool{}
		for _, svc := range f.Services {
			hosts[string(svc.Hostname)] = true
		}
		if len(f.Services) != 20 || len(hosts) != 1 {
			t.Fatalf("fragment %d has %v", i, objects(f))
		}
	}
}

func testBound(s store, cfg Config) {
	t := s.t
	other := strings.Replace(entry("x", "one"), "{name: x}", "{name: x, namespace: other}", 1)
	s.put("a.yaml", entry("a", "one")+other)
	cfg.Namespaces = []string{"shop"}
	r := start(t, cfg)
	r.Await("shop/a=one")
	if !r.hasFault("the namespace \"other\" is not one that") {
		t.Errorf("faults: %v", r.Status().Faults)
	}
}

func testValues(s store, cfg Config) {
	t := s.t
	big := entry("a", "two") + "#" + strings.Repeat("x", 300_000)
	s.put("a.yaml", entry("a", "one"))
	s.put("b.yaml", big)
	r := start(t, cfg)
	r.Await("a=one")
	s.put("b.yaml", "# none\n")
	r.awaitStatus("quiet", func(st *lastgood.Status) bool { return len(st.Faults) == 0 })
	if _, err := s.kv.Put(&api.KVPair{Key: s.prefix + "/a.yaml", Value: make([]byte, MaxValueSize+1)}, nil); err == nil {
		t.Error("Consul took a value that is larger than we say it takes")
	}
	cfg.MaxKeys = 1
	r = start(t, cfg)
	r.awaitStatus("unavailable", func(st *lastgood.Status) bool {
		return unavailable(st) && strings.Contains(st.Reason, "there are 2 manifests; at most 1 are read")
	})
	if list, _ := r.History(); len(list) > 0 {
		t.Errorf("it sent %v", objects(list[0]))
	}
}

func testRestart(s store, cfg Config) {
	t := s.t
	cfg.StateDir = t.TempDir()
	s.put("a.yaml", entry("a", "one")+entry("b", "one"))
	s.put("c.yaml", entry("c", "one"))
	r := start(t, cfg)
	r.Await("a=one", "b=one", "c=one")
	s.put("a.yaml", entry("a", "two")+broken("b"))
	r.Await("a=two", "b=one", "c=one")
	since := r.Status().Kept[0].Since
	r.Stop()
	s.put("c.yaml", "]") // while nobody looks
	r = start(t, cfg)
	r.Await("a=two", "b=one", "c=one")
	st := r.awaitStatus("keeping", func(st *lastgood.Status) bool { return len(st.Kept) == 2 })
	if !st.Kept[0].Since.Equal(since) {
		t.Errorf("b is kept since %v, was %v", st.Kept[0].Since, since)
	}
	r.Always("a=two", "b=one", "c=one")
	r.Stop()

	// Another prefix under the same state has nothing of this one.
	cfg.Prefix += "nothing"
	r = start(t, cfg)
	r.Await()
	if list, _ := r.History(); len(list) != 1 {
		t.Errorf("at first it had %v", objects(list[0]))
	}
}

// testLostMeantime: what was lost while the server was away is handed out as a
// loss, after what there was before, and kept on disk until it is let go.
func testLostMeantime(s store, cfg Config) {
	t := s.t
	cfg.StateDir, cfg.AwaitDecision = t.TempDir(), true
	all := []string{"a=one", "b=one", "c=one"}
	s.put("ab.yaml", entry("a", "one")+entry("b", "one"))
	s.put("c.yaml", entry("c", "one"))
	r := start(t, cfg)
	r.Decided(r.Await(all...), 0)
	r.Stop()
	s.remove("ab.yaml")
	for range 2 {
		r = start(t, cfg)
		left := r.Await("c=one")
		list, _ := r.History()
		if !slices.Equal(objects(list[0]), all) {
			t.Errorf("the first fragment has %v, want %v", objects(list[0]), all)
		}
		r.Decided(list[0], 0)
		r.Decided(left, 2)
		r.awaitReadings(3) // looks come sooner while something is held
		r.Stop()
	}
	r = start(t, cfg)
	r.Decided(r.Await("c=one"), 0)
	r.Stop()
	r = start(t, cfg)
	r.Await("c=one")
	if list, _ := r.History(); len(list) != 1 {
		t.Errorf("after it was let go the first fragment has %v", objects(list[0]))
	}
}

// TestLargeValue: a value that is too large leaves what was there in force. Consul
// takes it where its limit was raised.
func TestLargeValue(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{Config: map[string]any{"limits": map[string]any{"kv_max_value_size": 4 * MaxValueSize}}})
	s := storeOf(t, a, "m")
	s.put("a.yaml", entry("a", "one"))
	r := start(t, at(a, "m"))
	r.Await("a=one")
	s.put("a.yaml", entry("a", "two")+"#"+strings.Repeat("x", MaxValueSize))
	s.put("b.yaml", entry("b", "one"))
	r.Await("a=one", "b=one")
	st := r.awaitStatus("partial", func(st *lastgood.Status) bool { return st.State == lastgood.Partial })
	if !r.hasFault("consul-kv:m/a.yaml: error [FL0302]: unreadable, its last objects stay in force: the value is too large") {
		t.Errorf("%q, faults %v", st.Reason, st.Faults)
	}
	s.put("a.yaml", entry("a", "three"))
	r.Await("a=three", "b=one")
	r.awaitStatus("ok", ok)
}

// TestUnsettledRemovalsStayOnDisk: what was read and never settled is not on disk, and
// must not be taken for a prefix that had nothing in it.
func TestUnsettledRemovalsStayOnDisk(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	storeOf(t, a, "m").put("a.yaml", entry("a", "one"))
	cfg := at(a, "m")
	cfg.StateDir, cfg.AwaitDecision = t.TempDir(), true
	r := start(t, cfg)
	r.Await("a=one")
	r.awaitReadings(2)
	r.Stop()
	a.Kill()
	r = start(t, cfg)
	r.awaitStatus("unavailable", unavailable)
	if list, _ := r.History(); len(list) > 0 || r.Status().Delivered {
		t.Errorf("it sent %v", objects(list[0]))
	}
}

// TestConsulUnreachable: without Consul the last known catalog stays, also across a restart of the
// source, and one that was lost is a loss.
func TestConsulUnreachable(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{Persistent: true})
	s := storeOf(t, a, "m")
	cfg := at(a, "m")
	cfg.StateDir = t.TempDir()
	s.put("a.yaml", entry("a", "one")+broken("x"))
	s.put("b.yaml", entry("b", "one"))
	r := start(t, cfg)
	r.Await("a=one", "b=one")
	a.Kill()
	st := r.awaitStatus("unavailable", unavailable)
	if st.Read.IsZero() || st.FromDisk || !st.Delivered {
		t.Errorf("status %+v", st)
	}
	r.Stop()
	r = start(t, cfg)
	r.Await("a=one", "b=one")
	again := r.awaitStatus("unavailable", unavailable)
	if !again.FromDisk || !again.Delivered || again.Read.Before(st.Read) || len(again.Faults) < 2 {
		t.Errorf("after a restart status %+v", again)
	}
	a.Start()
	r.awaitStatus("ok", ok)
	s = storeOf(t, a, "m")
	s.put("a.yaml", entry("a", "two"))
	r.Await("a=two", "b=one")
	r.Always("b=one")
	if again = r.awaitStatus("ok", ok); again.FromDisk {
		t.Error("it is still reported as from disk")
	}

	// All data is gone: that is a reading, and whether it is accepted is up to the
	// registry. The index has gone backwards.
	a.Kill()
	a.Wipe()
	a.Start()
	r.Await()
	s = storeOf(t, a, "m")
	s.put("b.yaml", entry("b", "two"))
	r.Await("b=two")
}

// TestNeverRead: who has read nothing yet says nothing, and who knows that there
// was nothing says that.
func TestNeverRead(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	cfg := at(a, "m")
	cfg.StateDir = t.TempDir()
	a.Kill()
	r := start(t, cfg)
	r.awaitStatus("unavailable", unavailable)
	if list, _ := r.History(); len(list) > 0 || r.Status().Delivered {
		t.Error("it sent something")
	}
	a.Start()
	r.Await()
	r.awaitStatus("ok", ok)
	r.Stop()
	a.Kill()
	r = start(t, cfg)
	r.Await()
	r.Stop()

	// A damaged state is not all that there was.
	damage(t, cfg.StateDir)
	r = start(t, cfg)
	r.awaitStatus("unavailable", unavailable)
	if list, _ := r.History(); len(list) > 0 || !r.hasFault("[FL0305]: last good versions are lost") {
		t.Errorf("of a damaged state it made %d fragments; faults %v", len(list), r.Status().Faults)
	}
}

func damage(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "consul-kv", "consul-kv", "lastgood-07.json")
	check(t, os.WriteFile(path, []byte("sha256:0\n[]"), 0o600))
}

// TestConnectionsCut: a network that is cut, without a word, is noticed by the readings; when it
// heals the source goes on.
func TestConnectionsCut(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	s := storeOf(t, a, "m")
	s.put("a.yaml", entry("a", "one"))
	p := consultest.NewProxy(t, net.JoinHostPort("127.0.0.1", "0"), a.HostPort())
	cfg := at(a, "m")
	cfg.Client.Address = "http://" + p.HostPort()
	r := start(t, cfg)
	r.Await("a=one")
	p.Cut()
	s.put("a.yaml", entry("a", "two"))
	r.awaitStatus("unavailable", unavailable)
	p.Heal()
	r.Await("a=two")
	r.awaitStatus("ok", ok)
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"prefix": {Prefix: "//"}, "dots": {Prefix: "a/../b"}, "slashes": {Prefix: "a//b"}, "limit": {Prefix: "a", MaxKeys: -1},
	} {
		cfg.Client.Address = "127.0.0.1:1"
		cfg.Logger = slog.New(slog.DiscardHandler)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if _, err := New(Config{Prefix: "a"}); err == nil {
		t.Error("no logger and no address was taken")
	}
}
