package xds

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/fold"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// somebody is a proxy of shop without endpoints.
func somebody(id, address string) view.Proxy {
	return view.Proxy{
		ID: id, Type: view.Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: "shop", Name: "x"},
		Addresses: []string{address}, Interception: view.InterceptRedirect,
	}
}

func (c *classes) mustGet(tb testing.TB, s *mesh.Snapshot, p view.Proxy, f forms, had sight) sight {
	tb.Helper()
	now, err := c.get(c.at(s), p, f, had)
	if err != nil {
		tb.Fatal(err)
	}
	return now
}

func TestEqualViewsShareOneGeneration(t *testing.T) {
	t.Parallel()
	s := shop().snapshot(nil)
	c := &classes{}
	first := c.mustGet(t, s, somebody("a", "127.0.0.50"), forms{}, sight{})
	second := c.mustGet(t, s, somebody("b", "127.0.0.51"), forms{}, sight{})
	if first.class != second.class {
		t.Error("two proxies that must do the same have two generations")
	}
	next := c.mustGet(t, shop().service("stock", 9090).snapshot(s), somebody("b", "127.0.0.51"), forms{}, second)
	shared := 0
	for _, a := range first.class.layers {
		for _, b := range next.class.layers {
			for _, p := range a.parts {
				for _, q := range b.parts {
					if p == q {
						shared++
					}
				}
			}
		}
	}
	if shared == 0 || next.class == first.class {
		t.Errorf("%d parts shared", shared)
	}
	again := c.mustGet(t, shop().service("stock", 9090).snapshot(s), somebody("b", "127.0.0.51"), forms{}, next)
	if again.class != next.class {
		t.Error("an equal snapshot makes another class")
	}
}

// Two classes share a part that cannot be built: neither may be served without
// it, for what is made from the part would be removed.
func TestFaultInASharedPart(t *testing.T) {
	t.Parallel()
	s, c := shop().snapshot(nil), &classes{}
	v := &view.View{Layers: []*view.Layer{{Parts: []view.Part{&view.Listener{Name: "without an address"}}}}}
	kept := make([]*class, 2) // as streams would
	for i := range kept {
		kept[i] = &class{}
		func() {
			defer func() {
				if recover() == nil || kept[i].generation != nil {
					t.Errorf("class %d has no fault", i)
				}
			}()
			c.fill(kept[i], s, v, nil, forms{})
		}()
	}
}

// What nobody holds is forgotten: parts, layers, classes.
func TestNothingIsKeptThatNobodyUses(t *testing.T) {
	t.Parallel()
	c := &classes{}
	s := shop().snapshot(nil)
	had := c.mustGet(t, s, somebody("a", "127.0.0.50"), forms{all: allByHost}, sight{})
	parts := c.parts.len()
	for i := range 20 {
		s = shop().service(fmt.Sprintf("s%d", i), 9000).snapshot(s)
		had = c.mustGet(t, s, somebody("a", "127.0.0.50"), forms{all: allByHost}, had)
	}
	eventually(t, "what only the past needs is forgotten", func() bool {
		runtime.GC()
		return c.parts.len() < 2*parts && c.layers.len() <= 2*len(had.class.layers) && c.classes.len() <= 2
	})
	runtime.KeepAlive(had)
}

// contentOf is every resource of a generation, by type and name, with its bytes.
func contentOf(g *stream.Generation) map[string]string {
	out := map[string]string{}
	for _, url := range countedTypes {
		for r := range g.All(url) {
			out[url.Short()+" "+r.Name] = r.Version + fmt.Sprint(r.Hosts, r.Refs) + string(r.Body)
		}
	}
	return out
}

// A layer that is made from the one before is the one that would be made anew,
// whatever changes, and in every form.
func TestLayersFromTheOneBefore(t *testing.T) {
	t.Parallel()
	for _, all := range []form{inOne, byHost, allByHost} {
		t.Run(fmt.Sprint("form-", all), func(t *testing.T) {
			t.Parallel()
			rnd := newRandom(t, uint64(all))
			o := big(40)
			c := &classes{}
			var (
				s   *mesh.Snapshot
				had sight
			)
			for step := range 60 {
				scramble(rnd, o, step)
				s = o.snapshot(s)
				had = c.mustGet(t, s, somebody("a", "127.0.0.50"), forms{all: all}, had)
				fresh := (&classes{}).mustGet(t, s, somebody("a", "127.0.0.50"), forms{all: all}, sight{})
				if got, want := contentOf(had.class.generation), contentOf(fresh.class.generation); !equalContent(t, got, want) {
					t.Fatalf("step %d differs", step)
				}
			}
		})
	}
}

// equalContent names no more than ten differences: of a fleet there may be
// thousands.
func equalContent(t *testing.T, got, want map[string]string) bool {
	t.Helper()
	var differ []string
	for k, v := range want {
		if has, ok := got[k]; !ok {
			differ = append(differ, k+" is missing")
		} else if has != v {
			differ = append(differ, k+" differs")
		}
	}
	for k := range got {
		if _, ok := want[k]; !ok {
			differ = append(differ, k+" is there")
		}
	}
	slices.Sort(differ)
	for _, d := range differ[:min(len(differ), 10)] {
		t.Error(d)
	}
	if n := len(differ) - 10; n > 0 {
		t.Errorf("and %d more", n)
	}
	return len(differ) == 0
}

// What has no route tables is made once, whatever the proxies can take.
func TestFormsShareWhatIsEqual(t *testing.T) {
	t.Parallel()
	s, c := big(fold.Few+5).snapshot(nil), &classes{}
	was := c.mustGet(t, s, somebody("a", "127.0.0.50"), forms{all: inOne}, sight{})
	for _, all := range []form{byHost, allByHost} {
		now := c.mustGet(t, s, somebody("b", "127.0.0.51"), forms{all: all}, sight{})
		for i, l := range now.class.layers {
			if same := l == was.class.layers[i]; same == isRoutes(l.source.Name) {
				t.Errorf("form %d: layer %q is the same: %v", all, l.source.Name, same)
			}
		}
	}
}

func TestForms(t *testing.T) {
	t.Parallel()
	s := big(fold.Few - 5).snapshot(nil) // a catch-all is one more
	few := (&classes{}).mustGet(t, s, somebody("a", "127.0.0.50"), forms{all: byHost}, sight{})
	folded := (&classes{}).mustGet(t, s, somebody("a", "127.0.0.50"), forms{all: allByHost}, sight{})
	s = big(fold.Few + 5).snapshot(nil)
	many := (&classes{}).mustGet(t, s, somebody("a", "127.0.0.50"), forms{all: byHost}, sight{})
	refused := (&classes{}).mustGet(t, s, somebody("a", "127.0.0.50"), forms{all: byHost, whole: view.RoutesLayer + "8080\n"}, sight{})
	for name, c := range map[string]struct {
		had   sight
		split bool
	}{"few": {few, false}, "few-but-folded": {folded, true}, "many": {many, true}, "refused": {refused, false}} {
		if got := len(c.had.class.virtualHosts()) > 0; got != c.split {
			t.Errorf("%s: by host %v", name, got)
		}
	}
}

// A table stays as a proxy has it, however many hosts it has; proxies that shall
// have the same share a class, whatever they had.
func TestFormsStay(t *testing.T) {
	t.Parallel()
	p := somebody("a", "127.0.0.50")
	hosts := []int{fold.Few - 5, fold.Few + 5, 100, fold.Few + 5, fold.Few - 5, 1, fold.Few + 5}
	for begin, split := range []bool{false, true} { // with few, with many
		c := &classes{}
		var had, other sight
		var s *mesh.Snapshot
		for i, n := range hosts[begin:] {
			s = big(n).snapshot(s)
			had, other = c.mustGet(t, s, p, forms{all: byHost}, had), c.mustGet(t, s, p, forms{all: byHost}, other)
			fresh := c.mustGet(t, s, p, forms{all: byHost}, sight{})
			if got := len(had.class.virtualHosts()) > 0; got != split {
				t.Errorf("step %d, %d services: in pieces: %t", i, n, got)
			}
			if got := len(fresh.class.virtualHosts()) > 0; got != (n > fold.Few) {
				t.Errorf("step %d, %d services: in pieces for one that has nothing: %t", i, n, got)
			}
			if other.class != had.class || (fresh.class == had.class) != (split == (n > fold.Few)) {
				t.Errorf("step %d: the classes of equal proxies differ", i)
			}
		}
		for _, all := range []form{inOne, allByHost} { // for these there is no choice
			now := c.mustGet(t, s, p, forms{all: all}, had)
			if got := len(now.class.virtualHosts()) > 0; got != (all == allByHost) {
				t.Errorf("form %d: in pieces %t", all, got)
			}
		}
	}
}
