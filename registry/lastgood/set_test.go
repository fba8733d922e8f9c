package lastgood

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeDecode reads a line an object:
//
//	NAME VALUE     a VirtualService, NAME may be NS/NAME
//	NAME !         one that is broken
//	NAME ?         one that is broken, and a policy for requests
//	!              one whose name is unknown
//	!!             the text is not YAML
func fakeDecode(path string, b *Blob) Decoded {
	var out Decoded
	for i, line := range strings.Split(string(b.Content), "\n") {
		words := strings.Fields(line)
		at := &mesh.Origin{Source: "s", Path: path, Line: i + 1, Column: 1}
		switch {
		case len(words) == 0:
		case words[0] == "!!":
			return Decoded{Unparsable: true, Faults: []manifest.Fault{faultAt(at, mesh.Key{}, "", "not YAML")}}
		case words[0] == "!":
			out.Objects = append(out.Objects, Object{Origin: at})
			out.Faults = append(out.Faults, faultAt(at, mesh.Key{}, "", "no name"))
		default:
			out.add(at, words)
		}
	}
	return out
}

func (d *Decoded) add(at *mesh.Origin, words []string) {
	ns, name, ok := strings.Cut(words[0], "/")
	if !ok {
		ns, name = "", words[0]
	}
	key := mesh.Key{Kind: mesh.KindVirtualService, Namespace: ns, Name: name}
	value := strings.Join(words[1:], " ")
	o := Object{Key: key, Origin: at, Hash: mesh.Hash(sha256.Sum256([]byte(value)))}
	switch value {
	case "?":
		u := &mesh.Unenforced{Meta: mesh.Meta{Key: key, Hash: o.Hash, Origin: at}}
		o.Denial = &mesh.Fragment{Unenforced: []*mesh.Unenforced{u}}
		fallthrough
	case "!":
		d.Faults = append(d.Faults, faultAt(at, key, "", "broken"))
	default:
		vs := &mesh.VirtualService{
			Meta: mesh.Meta{Key: key, Hash: o.Hash, Origin: at},
			Spec: &networking.VirtualService{Hosts: []string{value}},
		}
		o.Fragment = &mesh.Fragment{VirtualServices: []*mesh.VirtualService{vs}}
	}
	d.Objects = append(d.Objects, o)
}

// objects is what a fragment holds, as "ns/name=value" lines.
func objects(f *mesh.Fragment) []string {
	list := []string{}
	for _, vs := range f.VirtualServices {
		list = append(list, strings.TrimPrefix(vs.Namespace+"/"+vs.Name, "/")+"="+vs.Spec.GetHosts()[0])
	}
	for _, u := range f.Unenforced {
		list = append(list, strings.TrimPrefix(u.Namespace+"/"+u.Name, "/")+"=denied")
	}
	slices.Sort(list)
	return list
}

// fixture is a set of texts that change at random.
type fixture struct {
	t   *testing.T
	rng *rand.Rand
	set *Set
}

func newFixture(t *testing.T, seed uint64) *fixture {
	t.Helper()
	return &fixture{t: t, rng: rand.New(rand.NewPCG(seed, 7)), set: NewSet("s", Words{Text: "file", Name: "path"})}
}

// put sets another content of a text; an empty one takes the text away.
func (w *fixture) put(order int, name, content string) {
	root := []string{"/r", "/a"}[order]
	path := root + "/" + name
	t := w.set.Text(path)
	switch {
	case content != "":
		var old *Version
		if t != nil {
			old = t.V
		}
		b := NewBlob([]byte(content))
		w.set.Put(&Text{
			Path: path, Order: order, Root: root, Rel: name, Twin: w.rng.Uint64(),
			V: NextVersion(old, b, fakeDecode(path, b), time.Time{}),
		})
	case t != nil:
		w.set.Drop(t)
	}
}

// step changes some texts.
func (w *fixture) step() {
	for range 1 + w.rng.IntN(3) {
		var text strings.Builder
		for range w.rng.IntN(4) {
			value := []string{"1", "2", "3", "!", "?"}[w.rng.IntN(5)]
			fmt.Fprintf(&text, "%s %s\n", []string{"x", "y", "z", "b/y", "v"}[w.rng.IntN(5)], value)
		}
		switch w.rng.IntN(12) {
		case 0:
			text.WriteString("!\n")
		case 1:
			text.WriteString("!!\n")
		}
		w.put(w.rng.IntN(2), fmt.Sprintf("f%d.yaml", w.rng.IntN(5)), text.String())
	}
	w.set.Yield()
}

// check holds what was made of changes against what all texts come to.
func (w *fixture) check(step int) {
	w.t.Helper()
	made := w.set.Assemble()
	list := slices.SortedFunc(maps.Values(w.set.texts), (*Text).Compare)
	if !slices.Equal(list, w.set.order) {
		w.t.Fatalf("step %d: the order of the texts is not right", step)
	}
	want := assembleWhole("s", list)
	if !Same(made.Fragment, want.Fragment) || made.Objects != want.Objects {
		w.t.Fatalf("step %d: %v, want %v", step, objects(made.Fragment), objects(want.Fragment))
	}
	if diff := cmp.Diff(want.Faults, made.Faults); diff != "" {
		w.t.Fatalf("step %d: faults (-want +got):\n%s", step, diff)
	}
	if diff := cmp.Diff(want.Kept, made.Kept); diff != "" {
		w.t.Fatalf("step %d: kept (-want +got):\n%s", step, diff)
	}
	for _, t := range list {
		for key := range t.V.kept {
			if w.set.Gives(key) {
				w.t.Fatalf("step %d: %s is kept in %s though another text gives it", step, key, t.Path)
			}
		}
	}
	if got, want := objects(w.restarted().Assemble().Fragment), objects(made.Fragment); !slices.Equal(got, want) {
		w.t.Fatalf("step %d: after a restart %v, want %v", step, got, want)
	}
}

// restarted is the set that a restart makes of the state directory's.
func (w *fixture) restarted() *Set {
	all := map[int]bool{}
	for shard := range shards {
		all[shard] = true
	}
	next := NewSet("s", Words{Text: "file", Name: "path"})
	for _, list := range w.set.entries(all) {
		for _, e := range list {
			path := e.Root + "/" + e.Rel
			v := e.Revive(func(b *Blob) Decoded { return fakeDecode(path, b) }, time.Time{})
			if v.Empty() {
				w.t.Fatalf("the state of %s is nothing", path)
			}
			next.Restore(&Text{Path: path, Order: w.set.Text(path).Order, Root: e.Root, Rel: e.Rel, V: v})
		}
	}
	return next
}

// TestBrokenPoliciesDeny: what nobody knows an earlier version of, denies; and nothing else does.
func TestBrokenPoliciesDeny(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 0)
	for i, step := range []struct {
		name, content, want string
		code                manifest.Code
	}{
		{"a.yaml", "p ?\nx 1", "p=denied x=1", CodeDenies}, // it was never good
		{"a.yaml", "p ?\nx 2", "p=denied x=2", CodeDenies}, // and is not good now
		{"a.yaml", "!!", "p=denied x=2", CodeDenies},       // it may still be there
		{"a.yaml", "p 1", "p=1", ""},                       // mended
		{"a.yaml", "p ?", "p=1", CodeKept},                 // there is a last good version
		{"b.yaml", "p 2", "p=2", CodeTwice},                // another text's counts
		{"b.yaml", "", "p=denied", CodeDenies},             // which is gone, with the last good version
		{"b.yaml", "p ?", "p=denied", CodeTwice},           // neither is good
		{"a.yaml", "", "p=denied", CodeDenies},             // the other still is
		{"b.yaml", "x 1\n!", "p=denied x=1", CodeDenies},   // the one without a name may be it
		{"b.yaml", "x 1", "x=1", ""},                       // removed
	} {
		w.put(0, step.name, step.content)
		w.set.Yield()
		w.check(i)
		made := w.set.Assemble()
		if got := strings.Join(objects(made.Fragment), " "); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
		has := slices.ContainsFunc(made.Faults, func(f manifest.Fault) bool { return f.Code == step.code })
		if step.code != "" && !has || step.code == "" && len(made.Faults) > 0 {
			t.Errorf("step %d: faults are %v", i, made.Faults)
		}
	}
}

// TestAssembleIsTheSameByEveryWay changes texts at random and compares what the
// changes come to with what all the files come to.
func TestAssembleIsTheSameByEveryWay(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		w := newFixture(t, seed)
		for i := range 150 {
			w.step()
			if w.rng.IntN(3) > 0 {
				w.check(i)
			}
		}
	}
}

func TestAssemble(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 0)
	w.put(0, "a.yaml", "z 1\nb/y 1\nx !")
	w.put(0, "b.yaml", "a/y 1\nz 2\nz 3\nx 5")
	w.check(0)
	made := w.set.Assemble()
	if diff := cmp.Diff([]string{"a/y=1", "b/y=1", "x=5", "z=1"}, objects(made.Fragment)); diff != "" {
		t.Error(diff)
	}
	if !slices.IsSortedFunc(made.Fragment.VirtualServices, func(a, b *mesh.VirtualService) int { return a.Compare(b.Key) }) {
		t.Error("not sorted")
	}
	if len(made.Faults) != 4 {
		t.Errorf("faults: %v", made.Faults)
	}
}

func FuzzParseShard(f *testing.F) {
	s := Store{f.TempDir()}
	e := Entry{Root: "/r", Rel: "a.yaml", Contents: [][]byte{[]byte("a 1")}, Kept: []EntryKept{{Content: 0}}}
	if err := s.save(0, []Entry{e}); err != nil {
		f.Fatal(err)
	}
	data, err := os.ReadFile(s.path(0))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("sha256:\n[]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := parseShard(data)
		if err != nil && list != nil {
			t.Error("both a list and an error")
		}
		for _, e := range list {
			e.Revive(func(b *Blob) Decoded { return fakeDecode(e.Rel, b) }, time.Time{})
		}
	})
}
