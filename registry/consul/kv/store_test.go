package kv

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/consul/client"
)

func open(t *testing.T, a *consultest.Agent, prefix string) *Store {
	t.Helper()
	s, err := Open(client.Config{Address: a.Address(), Logger: slog.New(slog.DiscardHandler)}, prefix)
	check(t, err)
	t.Cleanup(s.Close)
	return s
}

// TestConflict: a key that is not as it was read keeps its whole transaction from
// being made, and is named with what became of it.
func TestConflict(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	keys := storeOf(t, a, "m")
	s := open(t, a, "m")
	big := strings.Repeat("x", 500_000)
	for _, rel := range []string{"changed.yaml", "deleted.yaml", "same.yaml", "alike.yaml", "pruned.yaml", "gone.yaml", "fine.yaml", "big.yaml"} {
		keys.put(rel, "old")
	}
	st, err := s.Read(t.Context())
	check(t, err)
	goal := Goal{Prune: true, Values: map[string][]byte{"big.yaml": []byte(big)}}
	for _, rel := range []string{"changed.yaml", "deleted.yaml", "same.yaml", "alike.yaml", "fine.yaml", "made.yaml"} {
		goal.Values[rel] = []byte("new")
	}
	plan := s.Plan(st, goal)
	for rel, value := range map[string]string{
		"changed.yaml": "other", "alike.yaml": "new", "made.yaml": "other", "pruned.yaml": "other", "big.yaml": "other",
	} {
		keys.put(rel, value)
	}
	// Consul counts no write of a value that is there already, but one of flags.
	keys.put("same.yaml", "old")
	if _, err := keys.kv.Put(&api.KVPair{Key: "m/same.yaml", Value: []byte("old"), Flags: 1}, nil); err != nil {
		t.Fatal(err)
	}
	keys.remove("deleted.yaml")
	keys.remove("gone.yaml")
	how := map[string]string{}
	for _, changes := range plan.Transactions() {
		err := s.Apply(t.Context(), changes)
		conflict, is := errors.AsType[*ConflictError](err)
		if !is {
			t.Fatalf("%v is no conflict", err)
		}
		for _, k := range conflict.Keys {
			words, _, _ := strings.Cut(k.How, ":")
			words, _, _ = strings.Cut(words, ";")
			words, _, _ = strings.Cut(words, ", at")
			how[strings.TrimPrefix(k.Key, "m/")] = words
		}
	}
	if diff := cmp.Diff(map[string]string{
		"changed.yaml": "was changed meanwhile by somebody else",
		"deleted.yaml": "was deleted meanwhile by somebody else",
		"same.yaml":    "was written meanwhile by somebody else, with the content it had",
		"alike.yaml":   "was written meanwhile by somebody else, just as it is here",
		"made.yaml":    "was made meanwhile by somebody else",
		"pruned.yaml":  "was changed meanwhile by somebody else",
		"big.yaml":     "was changed meanwhile by somebody else",
	}, how); diff != "" {
		t.Error(diff)
	}
	if st, err = s.Read(t.Context()); err != nil || string(st.Values["fine.yaml"].Content) != "old" {
		t.Errorf("half of a transaction was made: %q, %v", st.Values["fine.yaml"].Content, err)
	}
	// What other programs keep beside a value stays.
	pair := &api.KVPair{Key: "m/fine.yaml", Value: []byte("flagged"), Flags: 42}
	if _, err := keys.kv.Put(pair, nil); err != nil {
		t.Fatal(err)
	}
	st, err = s.Read(t.Context())
	check(t, err)
	for _, changes := range s.Plan(st, goal).Transactions() {
		check(t, s.Apply(t.Context(), changes))
	}
	pair, _, err = keys.kv.Get("m/fine.yaml", nil)
	if err != nil || pair.Flags != 42 || string(pair.Value) != "new" {
		t.Errorf("%+v, %v", pair, err)
	}
	st, err = s.Read(t.Context())
	check(t, err)
	if plan := s.Plan(st, goal); len(plan.Changes) > 0 || plan.Same != len(goal.Values) {
		t.Errorf("after the push there is more to do: %+v", plan.Changes)
	}
}

// TestUncertain: nobody knows what became of a transaction to which no answer
// came.
func TestUncertain(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	s := open(t, a, "m")
	plan := s.Plan(&State{}, Goal{Values: map[string][]byte{"a.yaml": []byte("x")}})
	a.Kill()
	err := s.Apply(t.Context(), plan.Changes)
	if _, is := errors.AsType[*UncertainError](err); !is {
		t.Errorf("%v", err)
	}
	if _, err := s.Read(t.Context()); !errors.Is(err, client.ErrUnavailable) {
		t.Errorf("reading: %v", err)
	}
}

func TestTransactions(t *testing.T) {
	t.Parallel()
	s := &Store{reader{prefix: "m"}}
	kind := func(rel string, _ []byte) int { return strings.Index("abc", rel[:1]) }
	st := &State{Values: map[string]Value{}}
	values := map[string][]byte{}
	for _, name := range []string{"a1", "b1", "c1"} {
		values["new/"+name] = nil
		st.Values[name] = Value{Content: []byte("x"), Index: 7}
		values[name] = []byte("y")
		st.Values[name+"-gone"] = Value{Index: 7}
	}
	delete(values, "new/a1")
	delete(values, "new/b1")
	delete(values, "new/c1")
	var order []string
	for _, c := range s.Plan(st, Goal{Values: values, Prune: true, Rank: kind}).Changes {
		order = append(order, string(c.Op)+" "+c.Rel)
	}
	want := []string{"update a1", "update b1", "update c1", "delete c1-gone", "delete b1-gone", "delete a1-gone"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Error(diff)
	}
	values = map[string][]byte{}
	for i := range 200 {
		values[fmt.Sprintf("%03d", i)] = make([]byte, 10_000)
	}
	plan := s.Plan(&State{}, Goal{Values: values})
	n := 0
	for _, changes := range plan.Transactions() {
		size := 2
		for i := range changes {
			size += changes[i].size()
		}
		if len(changes) > maxOps || size > maxBody {
			t.Errorf("a transaction has %d operations and %d bytes", len(changes), size)
		}
		n += len(changes)
	}
	if n != len(values) {
		t.Errorf("%d changes of %d", n, len(values))
	}
}

// FuzzPull: whatever the keys are, nothing is written outside of the directory,
// and what is written has one key.
func FuzzPull(f *testing.F) {
	for _, rel := range []string{
		"a.yaml", "sub/b.yml", "../x.yaml", "a/../../x.yaml", "/x.yaml", "a//b.yaml", "a\x00.yaml", `a\..\x.yaml`, "./x.yaml", "x.yaml/..",
		"…/ü.yaml", "a/.git/x.yaml", strings.Repeat("n", 300) + ".yaml",
	} {
		f.Add(rel, "other.yaml")
	}
	f.Fuzz(func(t *testing.T, one, two string) {
		top := t.TempDir()
		dir := filepath.Join(top, "in", "dir")
		st := &State{Values: map[string]Value{one: {Content: []byte(one)}, two: {Content: []byte(two)}}}
		list, _, err := Pull{Dir: dir}.Run(&Store{reader{prefix: "m"}}, st)
		check(t, err)
		done := map[string]bool{}
		for _, x := range list {
			if x.Err == nil {
				done[x.Rel] = true
			}
		}
		found := map[string]bool{}
		check(t, filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || d.Name() == recordName {
				return err
			}
			rel, err := filepath.Rel(dir, path)
			content, readErr := os.ReadFile(path)
			if string(content) != rel {
				t.Errorf("%q has the value of %q", path, content)
			}
			found[rel] = true
			return errors.Join(err, readErr)
		}))
		if !maps.Equal(done, found) {
			t.Errorf("reported %q, found %q", slices.Sorted(maps.Keys(done)), slices.Sorted(maps.Keys(found)))
		}
		for rel := range found {
			if CheckRel(rel) != nil || !filepath.IsLocal(rel) {
				t.Errorf("%q was written", rel)
			}
		}
	})
}

func TestPathOfIsPrintable(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, key := range []string{"m/a.yaml", "m/a\nb.yaml", `m/a\nb.yaml`, "m/\x1b[2J.yaml", "m/ü.yaml", "m/\u202ea.yaml", "m/a\u200b.yaml", "m/\x9b2J.yaml", "m/\u009b2J.yaml", "m/\"\n\"", "m/\"\n"} {
		path := PathOf(key)
		if strings.ContainsAny(path, "\n\x1b\u202e\u200b\u009b") || !utf8.ValidString(path) || seen[path] != "" {
			t.Errorf("%q is called %q, as %q is", key, path, seen[path])
		}
		if rel := strings.TrimPrefix(key, "m/"); path != "consul-kv:"+key && CheckRel(rel) == nil {
			t.Errorf("%q would become a file", rel)
		}
		seen[path] = key
	}
}
