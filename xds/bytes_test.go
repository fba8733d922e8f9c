package xds

import (
	"fmt"
	"slices"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/cache"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// Resources that are shared, reused or patched have the same bytes and versions as those
// that the builders make for a view from scratch, which are those of the golden files.
func TestBytesEqualFreshBuild(t *testing.T) {
	t.Parallel()
	for name, all := range map[string]cache.Delivery{"in-one": cache.Inline, "all-by-host": cache.VHDS} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, made := newRandomMesh(uint64(40+all)), cache.New(view.Settings{})
			had := make([]cache.Configuration, 6)
			var s *mesh.Snapshot
			for step := range 40 {
				for range 1 + step%3 {
					c.change()
				}
				s = c.snapshot(s)
				for i := range had {
					if (step+i)%4 == 0 {
						continue // it skips this one
					}
					p := c.proxy(i * 5 / 2)
					had[i] = mustGet(t, made, s, p, cache.Routes{Delivery: all}, had[i])
					got, want := sentOf(t, had[i].Resources.Generation), builtOf(view.Build(s, p), all)
					if d := cmp.Diff(want, got); d != "" {
						t.Fatalf("step %d, proxy %s (-want +got):\n%.2000s", step, p.ID, d)
					}
				}
			}
		})
	}
}

// proxy is one of the mesh's proxies.
func (c *randomMesh) proxy(i int) view.Proxy {
	w := c.proxies[i]
	return view.Proxy{
		ID: "sidecar~" + w.Address + "~" + w.Name + "." + w.Namespace + "~" + w.Namespace + ".svc.local", Type: view.Sidecar,
		ServiceAccount: mesh.ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount}, Addresses: []string{w.Address},
		Labels: w.Labels, Locality: w.Locality, Interception: view.InterceptRedirect,
	}
}

// sentOf is what a stream would be sent, from the buffers for the transport.
func sentOf(t *testing.T, g *stream.Generation) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, url := range cache.Types() {
		r := &stream.Response{TypeURL: url, Resources: slices.Collect(g.All(url))}
		m := &discovery.DeltaDiscoveryResponse{}
		if err := proto.Unmarshal(slices.Concat(r.AppendBuffers(nil)...), m); err != nil {
			t.Fatal(err)
		}
		for _, x := range m.GetResources() {
			out[url.Short()+" "+x.GetName()] = fmt.Sprintf("%s %x", x.GetVersion(), x.GetResource().GetValue())
		}
	}
	return out
}

// builtOf is what the builders make for each part of a view alone.
func builtOf(v *view.View, all cache.Delivery) map[string]string {
	out := map[string]string{}
	add := func(list ...envoy.Resource) {
		for _, r := range list {
			name := stream.TypeURL(r.TypeURL).Short() + " " + r.Name
			if out[name] == "" { // the first one counts
				out[name] = fmt.Sprintf("%s %x", r.Version, r.Body)
			}
		}
	}
	for p := range v.Parts() {
		t, ok := p.(*view.RouteConfiguration)
		if ok && all == cache.VHDS && envoy.SupportsVHDS(t) {
			pieces, _ := envoy.BuildVHDSRoutes(t)
			add(pieces.Base)
			add(pieces.VirtualHosts...)
			continue
		}
		list, _ := envoy.Build(p)
		add(list...)
	}
	return out
}

func mustGet(tb testing.TB, c *cache.Cache, s *mesh.Snapshot, p view.Proxy, r cache.Routes, had cache.Configuration) cache.Configuration {
	tb.Helper()
	now, err := c.Get(c.At(s), p, r, had)
	if err != nil {
		tb.Fatal(err)
	}
	return now
}
