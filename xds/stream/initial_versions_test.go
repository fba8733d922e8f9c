package stream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/race"
)

// comparedSlowly is a simple version of compareInitialVersions.
func comparedSlowly(want *mergedSet, sub subscription, listed []Version) (have map[string]string, exact bool) {
	said := map[string]string{}
	for _, v := range listed {
		said[v.Name] = v.Version
	}
	have, exact = map[string]string{}, true
	for name, version := range said {
		if version != "" && sub.has(name) {
			have[name] = version
			exact = exact && want.get(name).version() == version
		}
	}
	return have, exact && len(have) == len(want.deltaFrom(nil, sub).add)
}

// A peer has what it lists, in any order, also with duplicate names and names that do not
// exist.
func TestCompareInitialVersions(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	names := func(n int) (out []string) {
		for i := range 12 {
			if r.IntN(12) < n {
				out = append(out, fmt.Sprintf("n%02d", i))
			}
		}
		return out
	}
	exact, again := 0, 0
	tries := 20_000
	if race.Enabled {
		tries = 2_000 // one goroutine
	}
	for range tries {
		g := &Generation{}
		for i := range r.IntN(4) { // layers, which may have a name twice
			var list []*Resource
			for _, name := range names(7) {
				list = append(list, &Resource{Name: name, Version: strconv.Itoa(1 + r.IntN(2)), Body: []byte(name)})
			}
			g.Layers = append(g.Layers, &Layer{Name: strconv.Itoa(i), Types: map[TypeURL]*Set{ClusterType: NewSet(list)}})
		}
		want := g.merged(ClusterType)
		sub := subscription{wildcard: r.IntN(2) == 0, set: new(Interner).intern(names(9))}
		var listed []Version
		switch r.IntN(3) {
		case 0: // just what it is to have
			for x := range want.all() {
				listed = append(listed, Version{Name: x.Name, Version: x.Version})
			}
		default:
			for range r.IntN(16) {
				listed = append(listed, Version{Name: fmt.Sprintf("n%02d", r.IntN(14)), Version: strings.Repeat("1", r.IntN(2))})
			}
		}
		r.Shuffle(len(listed), func(i, j int) { listed[i], listed[j] = listed[j], listed[i] })
		before := slices.Clone(listed)
		got := compareInitialVersions(want, sub, listed, nil)
		if !slices.Equal(before, listed) {
			t.Fatal("the list is another")
		}
		have, all := comparedSlowly(want, sub, listed)
		if got.exact != all || got.count != len(have) {
			t.Fatalf("exact %t with %d, want %t with %d: listed %v, subscribed %v", got.exact, got.count, all, len(have), listed, sub.set.all())
		}
		if all {
			exact++
		}
		if len(listed) > 0 && all {
			again++
		}
		if got.have == nil {
			continue // it shares the merged set
		}
		compared := map[string]string{}
		for _, x := range got.have {
			compared[x.Name] = x.Version
			if w := want.get(x.Name); w.version() == x.Version && w != x {
				t.Fatalf("%s is not shared", x.Name)
			}
		}
		if d := cmp.Diff(have, compared); d != "" || len(compared) != len(got.have) {
			t.Fatal(d)
		}
	}
	if exact < tries/20 || again < tries/40 {
		t.Errorf("only %d and %d were exact", exact, again)
	}
}

// A peer with a wildcard subscription that also subscribes to a missing name is told that
// it does not exist, however many other resources there are.
func TestMissingNamesBesideWildcard(t *testing.T) {
	t.Parallel()
	for n := range 4 {
		var of []string
		for i := range n {
			of = append(of, fmt.Sprintf("c/%d=1", i))
		}
		s := NewServer(ServerConfig{})
		s.SetGeneration(gen(1, of...))
		must(t, s.Request(start, &discovery.DeltaDiscoveryRequest{TypeUrl: string(ClusterType), ResourceNamesSubscribe: []string{"*", "x"}}))
		gone := map[string]bool{}
		for r := s.Next(start); r != nil; r = s.Next(start) {
			for _, name := range r.Message().GetRemovedResources() {
				gone[name] = true
			}
			must(t, s.Request(start, &discovery.DeltaDiscoveryRequest{TypeUrl: string(r.TypeURL), ResponseNonce: r.Nonce}))
		}
		if !maps.Equal(gone, map[string]bool{"x": true}) {
			t.Errorf("beside %d others: %v were removed", n, gone)
		}
	}
}

// BenchmarkReconnect is a proxy that reconnects with all resources of a mesh of 1,000
// services.
func BenchmarkReconnect(b *testing.B) {
	for _, changed := range []int{0, 1} {
		b.Run(fmt.Sprintf("changed=%d", changed), func(b *testing.B) {
			frames, g := returningFleet(b, changed)
			in := new(Interner)
			b.ReportAllocs()
			for b.Loop() {
				s := NewServer(ServerConfig{Interner: in})
				s.SetGeneration(g)
				for _, f := range frames {
					req, err := DecodeRequest(f, g, DefaultMaxNames)
					if err != nil {
						b.Fatal(err)
					}
					if err := s.Take(start, req); err != nil {
						b.Fatal(err)
					}
					req.Release()
				}
				sent := 0
				for r := s.Next(start); r != nil; r = s.Next(start) {
					sent += len(r.Resources)
				}
				if sent < changed || sent > 2*changed {
					b.Fatalf("%d resources sent", sent)
				}
			}
		})
	}
}

// returningFleet is a generation, and what a proxy says that has all of it but some
// clusters in another version.
func returningFleet(b *testing.B, changed int) (frames []Frame, g *Generation) {
	b.Helper()
	g = &Generation{Number: 1}
	for _, url := range []TypeURL{ClusterType, EndpointType, RouteType, VirtualHostType} {
		req := &discovery.DeltaDiscoveryRequest{TypeUrl: string(url), InitialResourceVersions: map[string]string{}}
		var list []*Resource
		for i := range map[TypeURL]int{ClusterType: 1400, EndpointType: 1400, RouteType: 1, VirtualHostType: 1000}[url] {
			name := fmt.Sprintf("outbound|8080||svc-%05d.team-%02d.mesh.internal", i, i%10)
			switch url { //nolint:exhaustive // the others are clusters' names
			case RouteType:
				name = "8080"
			case VirtualHostType:
				name = fmt.Sprintf("8080/svc-%05d.team-%02d.mesh.internal:8080", i, i%10)
			}
			version := fmt.Sprintf("%016x", i*7919)
			list = append(list, NewResource(url, Resource{Name: name, Version: version, Body: make([]byte, 400), Hosts: url == RouteType}))
			if url == ClusterType && i < changed {
				version = "old"
			}
			req.InitialResourceVersions[name] = version
			if url == EndpointType || url == RouteType {
				req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, name)
			}
		}
		rand.New(rand.NewPCG(1, 1)).Shuffle(len(req.ResourceNamesSubscribe), func(i, j int) {
			l := req.ResourceNamesSubscribe
			l[i], l[j] = l[j], l[i]
		})
		text, err := proto.Marshal(req)
		if err != nil {
			b.Fatal(err)
		}
		frames = append(frames, slices.Collect(slices.Chunk(text, 16<<10)))
		g.Layers = append(g.Layers, &Layer{Name: string(url), Types: map[TypeURL]*Set{url: NewSet(list)}})
	}
	return frames, g
}
