package stream

import (
	"bytes"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// The encoding assembled from shared bytes equals that of the message.
func TestBuffersEqualMessage(t *testing.T) {
	t.Parallel()
	for _, r := range []*Response{
		{TypeURL: ClusterType},
		{TypeURL: ClusterType, Nonce: "7", SystemVersion: "12", Removed: []string{"a", "", "c"}},
		{TypeURL: EndpointType, Nonce: "8", Resources: []*Resource{
			NewResource(EndpointType, Resource{Name: "a", Version: "v", Body: []byte("body")}),
			NewResource(EndpointType, Resource{Name: "b", Version: "w"}),
			NewResource(EndpointType, Resource{Name: "c", Version: "x", Body: bytes.Repeat([]byte{7}, 1<<17)}),
		}},
	} {
		b := slices.Concat(r.AppendBuffers(nil)...)
		var got discovery.DeltaDiscoveryResponse
		if err := proto.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		if want := r.Message(); !proto.Equal(want, &got) {
			t.Errorf("the buffers decode to something else (-message +buffers):\n%s", cmp.Diff(want, &got, protocmp.Transform()))
		}
		if r.Size() != len(b) {
			t.Errorf("size %d, encoded in %d bytes", r.Size(), len(b))
		}
		for _, x := range r.Resources {
			if len(x.Body) > 0 && !bytes.Contains(x.wire, x.Body) {
				t.Error("the body is not in the wire")
			}
		}
	}
}

func flat(of iter.Seq[*Resource]) map[string]string {
	out := map[string]string{}
	for r := range of {
		out[r.Name] = r.Version
	}
	return out
}

// Sets, layers and deltas, compared with maps.
func TestSetsAndLayersMatchMaps(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		var prev *Generation
		layers := []*Layer{{}, {}, {}}
		for number := range uint64(12) {
			layers = slices.Clone(layers)
			for range 1 + r.IntN(2) {
				i := r.IntN(len(layers))
				was := layers[i].Types[RouteType]
				want := flat(was.All())
				var changed []*Resource
				var removed []string
				for range r.IntN(4) {
					name := strconv.Itoa(r.IntN(9))
					if r.IntN(8) > 0 {
						name = strconv.Itoa(i) + "/" + name // else perhaps in several layers
					}
					changed = append(changed, NewResource(RouteType, Resource{Name: name, Version: strconv.Itoa(r.IntN(3))}))
				}
				for _, res := range slices.Backward(changed) {
					want[res.Name] = res.Version // the first one counts
				}
				for name := range want {
					if r.IntN(5) == 0 {
						removed = append(removed, name)
						delete(want, name)
					}
				}
				next := was.With(changed, removed)
				if got := flat(next.All()); !maps.Equal(got, want) || next.Len() != len(want) {
					t.Fatalf("seed %d: with %v without %v is %v, want %v", seed, changed, removed, got, want)
				}
				layers[i] = &Layer{Name: fmt.Sprintf("layer %d", i), Types: map[TypeURL]*Set{RouteType: next}}
			}
			if r.IntN(6) == 0 {
				r.Shuffle(len(layers), func(i, j int) { layers[i], layers[j] = layers[j], layers[i] })
			}
			g := &Generation{Number: number, Layers: layers}
			checkGeneration(t, seed, prev, g)
			prev = g
		}
	}
}

func checkGeneration(t *testing.T, seed uint64, prev, g *Generation) {
	t.Helper()
	want := map[string]string{}
	for _, l := range slices.Backward(g.Layers) {
		maps.Copy(want, flat(l.Types[RouteType].All()))
	}
	if got := flat(g.All(RouteType)); !maps.Equal(got, want) || g.merged(RouteType).len() != len(want) {
		t.Fatalf("seed %d: all %v (%d), want %v", seed, got, g.merged(RouteType).len(), want)
	}
	layers := map[string]int{} // that have a name
	for _, l := range g.Layers {
		for r := range l.Types[RouteType].All() {
			layers[r.Name]++
		}
	}
	maps.DeleteFunc(layers, func(_ string, n int) bool { return n < 2 })
	var several []string
	for url, name := range g.Duplicates() {
		several = append(several, url.Short()+" "+name)
	}
	twice := sortedKeys(layers)
	for i := range twice {
		twice[i] = RouteType.Short() + " " + twice[i]
	}
	if !slices.Equal(several, twice) {
		t.Fatalf("seed %d: %v are in several layers, want %v", seed, several, twice)
	}
	d := g.merged(RouteType).diff(prev.merged(RouteType))
	got := map[string]string{}
	if prev != nil {
		got = flat(prev.All(RouteType))
	}
	for _, name := range d.removed {
		if _, ok := got[name]; !ok {
			t.Errorf("seed %d: removed %q, which was not there", seed, name)
		}
		delete(got, name)
	}
	for _, r := range d.changed {
		if got[r.Name] == r.Version {
			t.Errorf("seed %d: %q has not changed", seed, r.Name)
		}
		got[r.Name] = r.Version
	}
	if !maps.Equal(got, want) {
		t.Fatalf("seed %d: applied, the difference gives %v, want %v", seed, got, want)
	}
}
