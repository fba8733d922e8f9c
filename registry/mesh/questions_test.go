package mesh

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"
)

// mergeBound merges sources, each bound to namespaces, or not if it has none.
func mergeBound(t *testing.T, bound []string, fragments ...*Fragment) *Snapshot {
	t.Helper()
	bindings := make([]*Binding, len(bound))
	for i, list := range bound {
		if list != "" {
			bindings[i] = &Binding{Namespaces: strings.Fields(list)}
		}
	}
	return Merge(Input{Fallback: testMeshConfig(), Bindings: bindings, Fragments: fragments})
}

// TestPortsAreDecidedApart: who comes behind whom at a port depends on the source, and on the
// namespace of its service.
func TestPortsAreDecidedApart(t *testing.T) {
	t.Parallel()
	service := func(ns, name string, protocol Protocol) *Service {
		s := testService(ns, name, name)
		s.Hostname = Hostname(name + "." + ns + ".svc.cluster.local")
		s.Ports = []Port{{Number: 5000, Name: "p", Protocol: protocol}}
		return s
	}
	yields := func(s *Snapshot) string {
		var out []string
		for _, svc := range s.Services {
			if len(svc.Yields) > 0 {
				out = append(out, svc.Namespace+"/"+svc.Name)
			}
		}
		return strings.Join(out, " ")
	}
	for _, c := range []struct {
		name      string
		bound     []string
		fragments []*Fragment
		want      string
	}{
		{
			"namespace",
			[]string{"a c", "b"},
			[]*Fragment{{Services: []*Service{service("a", "x", TCP), service("c", "x", TCP)}}, {Services: []*Service{service("b", "x", TCP)}}},
			"b/x c/x",
		},
		{
			"source",
			[]string{"a b", "a", "b"},
			[]*Fragment{{Services: []*Service{service("a", "first", TCP)}}, {Services: []*Service{service("a", "second", TCP)}}, {Services: []*Service{service("b", "web", HTTP)}}},
			"a/second",
		},
		{
			"source_behind",
			[]string{"a", "a b", "b"},
			[]*Fragment{{Services: []*Service{service("a", "first", TCP)}}, {Services: []*Service{service("a", "second", TCP)}}, {Services: []*Service{service("b", "web", HTTP)}}},
			"a/first",
		},
	} {
		s := mergeBound(t, c.bound, c.fragments...)
		if got := yields(s); got != c.want {
			t.Errorf("%s: %q come behind others, want %q", c.name, got, c.want)
		}
	}
}

// TestOnlySharedNamespacesComeLast: a bound source's objects come last where another source has
// dated ones, and stay as they are in its other namespaces.
func TestOnlySharedNamespacesComeLast(t *testing.T) {
	t.Parallel()
	sidecar := func(ns, name string, day int) *Sidecar {
		x := &Sidecar{Meta: testMeta(KindSidecar, ns, name, name)}
		if day > 0 {
			x.Created = time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC)
		}
		return x
	}
	shared, alone := sidecar("a", "mine", 1), sidecar("other", "mine", 1)
	s := mergeBound(t, []string{"", "a other"}, &Fragment{Sidecars: []*Sidecar{sidecar("a", "operator", 2)}}, &Fragment{Sidecars: []*Sidecar{shared, alone}})
	for _, x := range s.Sidecars {
		switch {
		case x.Namespace == "other" && x != alone:
			t.Errorf("%s is of %s", x.Key, x.Created)
		case x.Name == "mine" && x.Namespace == "a" && !x.Created.Equal(newestDate()):
			t.Errorf("%s is of %s, before others'", x.Key, x.Created)
		}
	}
}

// TestDefaultExportsAreDecidedAgain: whose services everybody sees depends on MeshConfig.
func TestDefaultExportsAreDecidedAgain(t *testing.T) {
	t.Parallel()
	private, routed := testService("shop", "db", "db"), testVirtualService("evil", "x", "x")
	private.Hostname = "db.internal"
	routed.Spec = &networking.VirtualService{Hosts: []string{"db.internal", "own.internal"}, Gateways: []string{"mesh"}}
	second := testService("evil", "db", "db")
	second.Hostname = "db.internal"
	config := func(defaults ...string) *MeshConfig {
		c := testMeshConfig()
		c.Spec.DefaultServiceExportTo = defaults
		c.Hash = Hash{byte(len(defaults)), 1}
		if len(defaults) > 0 {
			c.Hash[2] = defaults[0][0]
		}
		return c
	}
	in := Input{
		Bindings:  []*Binding{{Namespaces: []string{"shop"}}, {Namespaces: []string{"evil"}}},
		Fragments: []*Fragment{{Services: []*Service{private}}, {Services: []*Service{second}, VirtualServices: []*VirtualService{routed}}},
	}
	for step, c := range []*MeshConfig{config(), config("."), config("*"), config("."), config("~"), config()} {
		in.Fallback = c
		s, fresh := Merge(in), in
		fresh.Prev = nil
		if got, want := fingerprint(t, s), fingerprint(t, Merge(fresh)); got != want {
			t.Errorf("step %d: it depends on the default before", step)
		}
		in.Prev = s
	}
}

// TestObjectsTwiceInABoundSource has a bound source list workloads at random, some of them twice
// or with another address under the same name. What is decided does not depend on the lists before.
func TestObjectsTwiceInABoundSource(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	var pool []*Workload
	theirs := &Fragment{}
	for i := range 9 {
		pool = append(pool, testWorkload("shop", fmt.Sprint("w", i/3), fmt.Sprint("10.0.0.", i%3), "db"))
	}
	for i := range 3 {
		s := testService("evil", fmt.Sprint("x", i), "x")
		s.Hostname, s.Addresses = Hostname(fmt.Sprint("x", i, ".evil")), []string{fmt.Sprint("10.0.0.", i)}
		theirs.Services = append(theirs.Services, s)
	}
	for range 300 {
		in := Input{Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"shop"}}, {Namespaces: []string{"evil"}}}}
		for step := range 4 {
			f := &Fragment{}
			for _, w := range pool {
				for range max(0, rng.IntN(5)-2) {
					f.Workloads = append(f.Workloads, w)
				}
			}
			in.Fragments = []*Fragment{f, theirs}
			s, fresh := Merge(in), in
			fresh.Prev = nil
			if got, want := fingerprint(t, s), fingerprint(t, Merge(fresh)); got != want {
				t.Fatalf("step %d: it depends on the lists before", step)
			}
			in.Prev = s
		}
	}
}
