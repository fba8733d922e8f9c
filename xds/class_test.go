package xds

import (
	"context"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

func TestEqualViewsShareOneGeneration(t *testing.T) {
	t.Parallel()
	s := shop().snapshot(nil)
	c := newClasses()
	p := view.Proxy{ID: "a", Type: view.Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: "shop", Name: "x"}, Addresses: []string{"127.0.0.50"}, Interception: view.InterceptRedirect}
	first, _, err := c.get(t.Context(), s, p)
	if err != nil {
		t.Fatal(err)
	}
	p.ID, p.Addresses = "b", []string{"127.0.0.51"}
	second, _, err := c.get(t.Context(), s, p)
	if err != nil {
		t.Fatal(err)
	}
	if first != second {
		t.Error("two proxies that must do the same have two generations")
	}
	next, _, err := c.get(t.Context(), shop().service("stock", 9090).snapshot(s), p)
	if err != nil {
		t.Fatal(err)
	}
	shared := 0
	for _, a := range first.parts {
		for _, b := range next.parts {
			if a == b {
				shared++
			}
		}
	}
	if shared == 0 || next == first {
		t.Errorf("%d of %d parts shared", shared, len(first.parts))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range cap(c.slots) {
		c.slots <- struct{}{}
	}
	if _, _, err := c.get(ctx, s, p); err == nil {
		t.Error("a builder that is busy does not heed the context")
	}
}

// Two classes share a part that cannot be built: neither may be served without
// it, for what is made from the part would be removed.
func TestFaultInASharedPart(t *testing.T) {
	t.Parallel()
	s, c := shop().snapshot(nil), newClasses()
	v := &view.View{Layers: []*view.Layer{{Parts: []view.Part{&view.Listener{Name: "without an address"}}}}}
	kept := make([]*class, 2) // as streams would
	for i := range kept {
		kept[i] = &class{}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("class %d has %v and no fault", i, kept[i].generation)
				}
			}()
			c.fill(kept[i], s, v)
		}()
	}
}
