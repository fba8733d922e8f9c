package cache

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/meshgen"
	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// A layer that is made from the one before has the resources of one that is made from
// nothing, also where parts have one name, and where parts come, go and move.
func TestLayersAreUpdatedRight(t *testing.T) {
	t.Parallel()
	var parts []view.Part // three clusters of each of six names
	for variant := range 3 {
		o := new(smallmesh.Objects)
		for i := range 6 {
			o.Service(fmt.Sprint("s", i), 8080)
			o.Workload(fmt.Sprintf("w%d-%d", i, variant), "127.0.0.9", map[string]string{"app": fmt.Sprint("s", i)})
		}
		for p := range view.Build(o.Snapshot(nil), somebody("a", "127.0.0.50")).Parts() {
			if c, ok := p.(*view.Cluster); ok && c.Ref.Kind == view.OutboundCluster {
				parts = append(parts, c)
			}
		}
	}
	if len(parts) != 18 {
		t.Fatalf("%d clusters", len(parts))
	}
	seeds, duplicates, patched := meshgen.Seeds(t, 20, 100), 0, 0
	for _, seed := range seeds {
		rnd := newRandom(t, seed)
		c := New(view.Settings{})
		var prev *layer
		var list []view.Part
		for step := range 60 {
			list = slices.Clone(list)
			for range 1 + rnd.IntN(3) {
				p := parts[rnd.IntN(len(parts))]
				i := rnd.IntN(len(list) + 1)
				switch {
				case slices.Contains(list, p): // goes, or moves
					list = slices.DeleteFunc(list, func(o view.Part) bool { return o == p })
					if rnd.IntN(3) == 0 {
						list = slices.Insert(list, rnd.IntN(len(list)+1), p)
					}
				case i < len(list) && rnd.IntN(2) == 0:
					list[i] = p
				default:
					list = slices.Insert(list, i, p)
				}
			}
			in := layerInput{Layer: &view.Layer{Name: "test", Parts: list}}
			updated, made := in.build(layerContext{c, prev}), in.build(layerContext{New(view.Settings{}), nil})
			got, want := updated.stream.Types[envoy.ClusterType], made.stream.Types[envoy.ClusterType]
			if g, w := resourcesOf(got), resourcesOf(want); g != w {
				t.Fatalf("seed %d, step %d: %s, want %s", seed, step, g, w)
			}
			if !slices.EqualFunc(updated.diagnostics, made.diagnostics, func(a, b envoy.Diagnostic) bool { return a.Message == b.Message }) {
				t.Fatalf("seed %d, step %d: told %v, want %v", seed, step, updated.diagnostics, made.diagnostics)
			}
			duplicates += len(made.diagnostics)
			if prev != nil && len(made.diagnostics) == 0 {
				patched++
			}
			prev = &updated
		}
	}
	if len(seeds) >= 20 && (duplicates < 50 || patched < 50) {
		t.Errorf("%d names were of two parts, %d layers had none", duplicates, patched)
	}
}

func resourcesOf(s *stream.Set) string {
	var b strings.Builder
	for r := range s.All() {
		fmt.Fprintf(&b, "%s %s;", r.Name, r.Version)
	}
	return b.String()
}
