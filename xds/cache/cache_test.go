package cache

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
	"github.com/fairlead/fairlead/xds/view"
)

// somebody is a proxy of shop without endpoints.
func somebody(id, address string) view.Proxy {
	return view.Proxy{
		ID: id, Type: view.Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: "shop", Name: "x"},
		Addresses: []string{address}, Interception: view.InterceptRedirect,
	}
}

func (c *Cache) mustGet(tb testing.TB, s *mesh.Snapshot, p view.Proxy, r Routes, had Configuration) Configuration {
	tb.Helper()
	now, err := c.Get(c.At(s), p, r, had)
	if err != nil {
		tb.Fatal(err)
	}
	return now
}

// A builder that panics for one proxy leaves the others, and says where it was.
func TestPanicOfABuilderIsAnError(t *testing.T) {
	t.Parallel()
	s := smallmesh.Shop().Snapshot(nil)
	c := New(view.Settings{})
	had := c.mustGet(t, s, somebody("a", "127.0.0.50"), Routes{}, Configuration{})
	broken := &Indexed{Snapshot: s, index: func() *view.Index { panic("no such thing") }}
	now, err := c.Get(broken, somebody("a", "127.0.0.50"), Routes{}, had)
	if err == nil || !strings.Contains(err.Error(), `"a": panic: no such thing`) || !strings.Contains(err.Error(), "TestPanicOfABuilderIsAnError") {
		t.Errorf("the error is %v", err)
	}
	if now.View != nil || now.Resources != nil {
		t.Errorf("there is a configuration all the same: %+v", now)
	}
	if again := c.mustGet(t, s, somebody("a", "127.0.0.50"), Routes{}, had); again.View != had.View || again.Resources != had.Resources {
		t.Error("the proxy has something else afterwards")
	}
}

func TestEqualViewsShareOneGeneration(t *testing.T) {
	t.Parallel()
	s := smallmesh.Shop().Snapshot(nil)
	c := New(view.Settings{})
	first := c.mustGet(t, s, somebody("a", "127.0.0.50"), Routes{}, Configuration{})
	second := c.mustGet(t, s, somebody("b", "127.0.0.51"), Routes{}, Configuration{})
	if first.Resources != second.Resources {
		t.Error("two proxies that must do the same have two generations")
	}
	next := c.mustGet(t, smallmesh.Shop().Service("stock", 9090).Snapshot(s), somebody("b", "127.0.0.51"), Routes{}, second)
	shared := 0
	for _, a := range first.Resources.layers {
		for _, b := range next.Resources.layers {
			for _, p := range a.parts {
				for _, q := range b.parts {
					if p == q {
						shared++
					}
				}
			}
		}
	}
	if shared == 0 || next.Resources == first.Resources {
		t.Errorf("%d parts shared", shared)
	}
	again := c.mustGet(t, smallmesh.Shop().Service("stock", 9090).Snapshot(s), somebody("b", "127.0.0.51"), Routes{}, next)
	if again.Resources != next.Resources {
		t.Error("an equal snapshot makes other Resources")
	}
}

// TestFailedPartFailsAllUsers: two Resources share a part that cannot be built. Neither may
// be served without it, because Envoy would remove what the part stands for.
func TestFailedPartFailsAllUsers(t *testing.T) {
	t.Parallel()
	c := New(view.Settings{})
	stack := &view.Stack{Layers: []*view.Layer{{Parts: []view.Part{&view.Listener{Name: "without an address"}}}}}
	for _, hold := range []bool{false, true} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("hold %t: no fault", hold)
				}
			}()
			c.resources.get(resourcesContext{Cache: c}, resourcesInput{Stack: stack, Hold: hold})
		}()
	}
}

// TestDuplicateNamesAreReported: a name that two parts have is reported, in one layer and
// in two.
func TestDuplicateNamesAreReported(t *testing.T) {
	t.Parallel()
	cluster := func() view.Part { return &view.Cluster{Ref: view.Outbound("a.mesh", 80, "")} }
	for name, layers := range map[string][]*view.Layer{
		"one layer":  {{Name: "a", Parts: []view.Part{cluster(), cluster()}}},
		"two layers": {{Name: "a", Parts: []view.Part{cluster()}}, {Name: "b", Parts: []view.Part{cluster()}}},
	} {
		c := New(view.Settings{})
		got := c.resources.get(resourcesContext{Cache: c}, resourcesInput{Stack: &view.Stack{Layers: layers}})
		if len(got.Diagnostics) != 1 || !strings.Contains(got.Diagnostics[0].Message, `the Cluster "outbound|80||a.mesh"`) {
			t.Errorf("%s: %+v", name, got.Diagnostics)
		}
	}
}

// TestUnusedResourcesAreCollected: parts, layers and resources that nobody uses are
// garbage-collected.
func TestUnusedResourcesAreCollected(t *testing.T) {
	t.Parallel()
	c := New(view.Settings{})
	s := smallmesh.Shop().Snapshot(nil)
	had := c.mustGet(t, s, somebody("a", "127.0.0.50"), Routes{Delivery: VHDS}, Configuration{})
	parts := len(c.encoded.made.All())
	for i := range 20 {
		s = smallmesh.Shop().Service(fmt.Sprintf("s%d", i), 9000).Snapshot(s)
		had = c.mustGet(t, s, somebody("a", "127.0.0.50"), Routes{Delivery: VHDS}, had)
	}
	eventually(t, "what only the past needs is forgotten", func() bool {
		runtime.GC()
		return len(c.encoded.made.All()) < 2*parts && len(c.layers.made.All()) <= 2*len(had.Resources.layers) && len(c.resources.made.All()) <= 2
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

// TestIncrementalLayersEqualFreshLayers: a layer made from the previous one equals one made
// from nothing, for every kind of change and delivery.
func TestIncrementalLayersEqualFreshLayers(t *testing.T) {
	t.Parallel()
	for _, all := range []Delivery{Inline, Auto, VHDS} {
		t.Run(fmt.Sprint("form-", all), func(t *testing.T) {
			t.Parallel()
			rnd := newRandom(t, uint64(all))
			o := smallmesh.Big(40)
			c := New(view.Settings{})
			var (
				s   *mesh.Snapshot
				had Configuration
			)
			for step := range 60 {
				scramble(rnd, o, step)
				s = o.Snapshot(s)
				had = c.mustGet(t, s, somebody("a", "127.0.0.50"), Routes{Delivery: all}, had)
				fresh := New(view.Settings{}).mustGet(t, s, somebody("a", "127.0.0.50"), Routes{Delivery: all}, Configuration{})
				if d := cmp.Diff(contentOf(fresh.Resources.Generation), contentOf(had.Resources.Generation)); d != "" {
					t.Fatalf("step %d (-want +got):\n%.2000s", step, d)
				}
			}
		})
	}
}

// TestDeliveriesShareOtherLayers: layers without a route configuration are shared, whatever
// the delivery.
func TestDeliveriesShareOtherLayers(t *testing.T) {
	t.Parallel()
	s, c := smallmesh.Big(vhds.MaxInline+5).Snapshot(nil), New(view.Settings{})
	was := c.mustGet(t, s, somebody("a", "127.0.0.50"), Routes{}, Configuration{})
	for _, all := range []Delivery{Auto, VHDS} {
		now := c.mustGet(t, s, somebody("b", "127.0.0.51"), Routes{Delivery: all}, Configuration{})
		for i, l := range now.Resources.layers {
			if same := l == was.Resources.layers[i]; same == isRouteLayer(l.Layer.Name) {
				t.Errorf("form %d: layer %q is the same: %v", all, l.Layer.Name, same)
			}
		}
	}
}

func TestAutoDelivery(t *testing.T) {
	t.Parallel()
	s := smallmesh.Big(vhds.MaxInline - 5).Snapshot(nil) // a catch-all is one more
	few := New(view.Settings{}).mustGet(t, s, somebody("a", "127.0.0.50"), Routes{Delivery: Auto}, Configuration{})
	vhdsOnly := New(view.Settings{}).mustGet(t, s, somebody("a", "127.0.0.50"), Routes{Delivery: VHDS}, Configuration{})
	s = smallmesh.Big(vhds.MaxInline + 5).Snapshot(nil)
	many := New(view.Settings{}).mustGet(t, s, somebody("a", "127.0.0.50"), Routes{Delivery: Auto}, Configuration{})
	refused := New(view.Settings{}).mustGet(t, s, somebody("a", "127.0.0.50"), Routes{Delivery: Auto}.WithInline(view.RoutesLayer+"8080"), Configuration{})
	for name, c := range map[string]struct {
		had   Configuration
		split bool
	}{"few": {few, false}, "few-but-vhds": {vhdsOnly, true}, "many": {many, true}, "refused": {refused, false}} {
		if got := len(c.had.Resources.VirtualHosts()) > 0; got != c.split {
			t.Errorf("%s: by VHDS %v", name, got)
		}
	}
}

// TestInlineRoutesAreByLayer: a proxy that rejected VHDS for some route configurations gets
// the others as before.
func TestInlineRoutesAreByLayer(t *testing.T) {
	t.Parallel()
	layer := func(name string) *view.Layer {
		return &view.Layer{Name: view.RoutesLayer + name, Parts: []view.Part{&view.RouteConfiguration{}}}
	}
	r := Routes{Delivery: VHDS}.WithInline(view.RoutesLayer + "80").WithInline(view.RoutesLayer + "8080").WithInline(view.RoutesLayer + "80")
	for name, want := range map[string]Delivery{"80": Inline, "8080": Inline, "0": VHDS, "808": VHDS, "81": VHDS} {
		if got := r.of(layer(name)); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if again := r.WithInline(view.RoutesLayer + "8080"); again != r {
		t.Errorf("a layer is in the settings twice: %q", again.Inline)
	}
}

// TestProxyKeepsFormOfRouteConfiguration: a proxy keeps the form of a route configuration,
// however many virtual hosts it has. Proxies with equal configurations share Resources,
// whatever they had before.
func TestProxyKeepsFormOfRouteConfiguration(t *testing.T) {
	t.Parallel()
	p := somebody("a", "127.0.0.50")
	hosts := []int{vhds.MaxInline - 5, vhds.MaxInline + 5, 100, vhds.MaxInline + 5, vhds.MaxInline - 5, 1, vhds.MaxInline + 5}
	for begin, split := range []bool{false, true} { // with few, with many
		c := New(view.Settings{})
		var had, other Configuration
		var s *mesh.Snapshot
		for i, n := range hosts[begin:] {
			s = smallmesh.Big(n).Snapshot(s)
			had, other = c.mustGet(t, s, p, Routes{Delivery: Auto}, had), c.mustGet(t, s, p, Routes{Delivery: Auto}, other)
			fresh := c.mustGet(t, s, p, Routes{Delivery: Auto}, Configuration{})
			if got := len(had.Resources.VirtualHosts()) > 0; got != split {
				t.Errorf("step %d, %d services: by VHDS: %t", i, n, got)
			}
			if got := len(fresh.Resources.VirtualHosts()) > 0; got != (n > vhds.MaxInline) {
				t.Errorf("step %d, %d services: by VHDS for a new proxy: %t", i, n, got)
			}
			if other.Resources != had.Resources || (fresh.Resources == had.Resources) != (split == (n > vhds.MaxInline)) {
				t.Errorf("step %d: the Resources of equal proxies differ", i)
			}
		}
		for _, all := range []Delivery{Inline, VHDS} { // for these there is no choice
			now := c.mustGet(t, s, p, Routes{Delivery: all}, had)
			if got := len(now.Resources.VirtualHosts()) > 0; got != (all == VHDS) {
				t.Errorf("form %d: by VHDS %t", all, got)
			}
		}
	}
}

// TestOlderSnapshotIsNotUsedAgain: a stream that asks for the previous snapshot gets the
// newest one.
func TestOlderSnapshotIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	o := smallmesh.Shop()
	for i := range 50 {
		o.Service(fmt.Sprintf("s%d", i), 8080)
	}
	mc := o.Snapshot(nil).MeshConfig
	snap := func(prev *mesh.Snapshot) *mesh.Snapshot {
		return mesh.NewSnapshot(prev, mc, []*mesh.Fragment{{Source: "files", Services: slices.Clone(o.Services), Workloads: slices.Clone(o.Workloads)}})
	}
	s1 := snap(nil)
	o.Service("new", 8080)
	s2 := snap(s1)
	c := New(view.Settings{})
	c.At(s1).Prepare()
	e2 := c.At(s2)
	e2.Prepare()
	get := func(e *Indexed, i int) Configuration {
		v, err := c.Get(e, view.Proxy{
			ID: strconv.Itoa(i), Type: view.Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: "shop", Name: "web"},
			Addresses: []string{"127.0.0.11"}, Interception: view.InterceptNone,
		}, Routes{}, Configuration{})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	keep := []Configuration{get(e2, 0), get(c.At(s1), 1)} // a stream that had asked for the snapshot just before
	before := e2.index().Stats()
	for i := range 20 {
		keep = append(keep, get(e2, i+2))
	}
	if w := e2.index().Stats().Minus(before); w.VirtualHosts > 60 {
		t.Errorf("each proxy has everything worked out for itself: %+v", w)
	}
	_ = keep
}
