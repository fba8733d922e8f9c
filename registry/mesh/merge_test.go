package mesh

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

func TestHostname(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		h, o             Hostname
		covers, overlaps bool
	}{
		{"foo.com", "foo.com", true, true},
		{"foo.com", "bar.com", false, false},
		{"*.com", "foo.com", true, true},
		{"bar.com", "*.com", false, true},
		{"*.foo.com", "foo.com", false, false},
		{"*foo.com", "foo.com", true, true},
		{"*foo.com", "barfoo.com", true, true},
		{"*", "foo.com", true, true},
		{"*", "*.com", true, true},
		{"*.com", "*", false, true},
		{"*.com", "*.foo.com", true, true},
		{"*.foo.com", "*.com", false, true},
		{"*.foo.com", "*.bar.com", false, false},
		{"*", "*", true, true},
		{"", "foo.com", false, false},
		{"*", "", true, true},
	} {
		if got := c.h.Covers(c.o); got != c.covers {
			t.Errorf("%q.Covers(%q) = %v", c.h, c.o, got)
		}
		if got := c.h.Overlaps(c.o); got != c.overlaps {
			t.Errorf("%q.Overlaps(%q) = %v", c.h, c.o, got)
		}
		if got := c.o.Overlaps(c.h); got != c.overlaps {
			t.Errorf("%q.Overlaps(%q) = %v", c.o, c.h, got)
		}
	}
}

func TestVisibleTo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		exports, fallback string
		to                string // the namespaces of "own" and "other" that see it
	}{
		{"", "", "[own other]"},
		{"*", ".", "[own other]"},
		{"own", "*", "[own]"},
		{"other", "*", "[other]"},
		{"~", "*", "[]"},
		{"", ".", "[own]"},
		{"", "~", "[]"},
		{"", "*", "[own other]"},
		{"", "other", "[other]"},
	} {
		svc := testService("own", "a", "a")
		if c.exports != "" {
			svc.ExportTo = Exports{c.exports}
		}
		config := testMeshConfig()
		if c.fallback != "" {
			config.Spec = &meshconfig.MeshConfig{DefaultServiceExportTo: []string{c.fallback}}
		}
		s := NewSnapshot(nil, config, []*Fragment{{Services: []*Service{svc}}})
		got := []string{}
		for _, ns := range []string{"own", "other"} {
			if len(s.ServicesVisibleTo(ns)) == 1 {
				got = append(got, ns)
			}
		}
		if fmt.Sprint(got) != c.to {
			t.Errorf("exportTo %q, default %q: visible to %v, want %s", c.exports, c.fallback, got, c.to)
		}
	}
	if (Exports{"a", "~"}).To("a") {
		t.Error("~ beside a namespace exports to it")
	}
}

func TestConflicts(t *testing.T) {
	t.Parallel()
	first, second := testService("a", "x", "x"), testService("a", "x", "y")
	other := *first // a second host of the same ServiceEntry
	other.Hostname = "zzz.example"
	foreign := *second
	foreign.Hostname = "yyy.example"
	twice := testVirtualService("a", "v", "2")
	kept := testVirtualService("a", "v", "1")
	s := testSnapshot(nil,
		&Fragment{Source: "one", Services: []*Service{first, &other}, VirtualServices: []*VirtualService{kept, twice}},
		&Fragment{Source: "two", Services: []*Service{second, &foreign, testService("a", "y", "y")}})
	var hosts []Hostname
	for _, svc := range s.Services {
		hosts = append(hosts, svc.Hostname)
	}
	if diff := cmp.Diff([]Hostname{"x.a.example", "y.a.example", "zzz.example"}, hosts); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
	if len(s.VirtualServices) != 1 || s.VirtualServices[0] != kept {
		t.Errorf("virtual services: %v", s.VirtualServices)
	}
	want := []Conflict{
		{Key: first.Key, Kept: first.Origin, Dropped: second.Origin},
		{Key: kept.Key, Kept: kept.Origin, Dropped: twice.Origin},
	}
	if diff := cmp.Diff(want, s.Conflicts); diff != "" {
		t.Errorf("conflicts (-want +got):\n%s", diff)
	}
}

func TestFirstMeshConfigWins(t *testing.T) {
	t.Parallel()
	one, two := testMeshConfig(), testMeshConfig()
	s := testSnapshot(nil, nil, &Fragment{}, &Fragment{MeshConfig: one}, &Fragment{MeshConfig: two})
	if s.MeshConfig != one {
		t.Error("the second one won")
	}
}

func TestChanges(t *testing.T) {
	t.Parallel()
	f := testFragment(1, 2, 2)
	f.VirtualServices = []*VirtualService{testVirtualService("ns000", "a", "1"), testVirtualService("ns000", "b", "1")}
	s1 := testSnapshot(nil, f)
	if s1.Changed != nil || s1.Changes != nil || s1.Generation != 1 {
		t.Errorf("the first snapshot tells of changes: %v", s1.Changes)
	}
	moved := *f.VirtualServices[1]
	moved.Origin = &Origin{Path: "b.yaml", Line: 7, Column: 1}
	added := testVirtualService("ns000", "c", "1")
	w := f.Workloads[0]
	next := *f
	next.VirtualServices = []*VirtualService{&moved, added}
	agents := &Fragment{Source: "agents", Health: []*HealthReport{{
		ServiceAccount: ServiceAccount{w.Namespace, w.ServiceAccount}, Address: w.Address, Health: Unhealthy, Own: true,
	}}}
	next.Services = slices.Clone(f.Services)
	edited := *f.Services[1]
	edited.Hash, edited.Ports = Hash{9}, []Port{{Name: "http", Number: 81}}
	next.Services[1] = &edited
	s2 := testSnapshot(s1, &next, agents)
	want := []Change{
		{Key: edited.Key, Op: Updated, Reach: ReachConfig, Origin: edited.Origin},
		{Key: f.VirtualServices[0].Key, Op: Removed, Reach: ReachConfig, Origin: f.VirtualServices[0].Origin},
		{Key: added.Key, Op: Added, Reach: ReachConfig, Origin: added.Origin},
		{Key: w.Key, Op: Updated, Reach: ReachHealth, Origin: w.Origin},
	}
	if diff := cmp.Diff(want, s2.Changes); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if len(s2.Changed) != len(want) || s2.Changed[0] != want[0].Key || s2.Generation != 2 {
		t.Errorf("changed: %v", s2.Changed)
	}
	if s2.VirtualServices[0].Origin.Line != 7 {
		t.Error("the new origin is not there")
	}
	s3 := testSnapshot(s2, &next, agents)
	if s3.Changed != nil || fingerprint(t, s3) != fingerprint(t, s2) {
		t.Errorf("changed though nothing did: %v", s3.Changed)
	}
}

func TestUnchangedListsAreShared(t *testing.T) {
	t.Parallel()
	f := testFragment(3, 3, 3)
	s1 := testSnapshot(nil, f)
	next := *f
	next.Workloads = slices.Clone(f.Workloads)
	w := *next.Workloads[0]
	w.Weight, w.Hash = 7, Hash{7}
	next.Workloads[0] = &w
	s2 := testSnapshot(s1, &next)
	if &s1.Services[0] != &s2.Services[0] {
		t.Error("services are another list")
	}
	if s1.index.namespaces.get("ns001") != s2.index.namespaces.get("ns001") {
		t.Error("another namespace was built anew")
	}
	for i, svc := range s2.Services {
		a, b := s1.EndpointsOf(svc), s2.EndpointsOf(svc)
		if shared := &a[0] == &b[0]; shared == slices.Contains(b, &w) {
			t.Errorf("service %d: shared %v", i, shared)
		}
		if x, y := s1.ServiceAccountsOf(svc), s2.ServiceAccountsOf(svc); &x[0] != &y[0] {
			t.Errorf("service %d: the accounts are another list", i)
		}
	}
}

func TestOrderIsByAge(t *testing.T) {
	t.Parallel()
	young, old := testVirtualService("a", "a", "1"), testVirtualService("a", "z", "1")
	young.Created = time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
	old.Created = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := testSnapshot(nil, &Fragment{VirtualServices: []*VirtualService{young, old}})
	if s.VirtualServices[0] != old {
		t.Error("the younger one is first")
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	base := testFragment(1, 2, 2)
	base.Services[0].Inline = []*Workload{testWorkload("ns000", "", "10.9.9.9", "x")}
	base.Services[0].Selector = nil
	for _, c := range []struct {
		name string
		edit func(f *Fragment)
		want Reach
	}{
		{"nothing", func(*Fragment) {}, ReachNone},
		{"moved_in_its_file", func(f *Fragment) { w := *f.Workloads[0]; w.Origin = &Origin{}; f.Workloads[0] = &w }, ReachNone},
		{"reported_health", func(f *Fragment) { f.Health = []*HealthReport{{Address: "a"}} }, ReachHealth},
		{"health", func(f *Fragment) { w := *f.Workloads[0]; w.Health, w.Hash = Unhealthy, Hash{1}; f.Workloads[0] = &w }, ReachHealth},
		{"weight", func(f *Fragment) { w := *f.Workloads[0]; w.Weight, w.Hash = 3, Hash{1}; f.Workloads[0] = &w }, ReachEndpoints},
		{"workload_removed", func(f *Fragment) { f.Workloads = f.Workloads[1:] }, ReachEndpoints},
		{"inline_removed", func(f *Fragment) { s := *f.Services[0]; s.Inline, s.Hash = nil, Hash{1}; f.Services[0] = &s }, ReachEndpoints},
		{"ports", func(f *Fragment) { s := *f.Services[0]; s.Ports, s.Hash = nil, Hash{1}; f.Services[0] = &s }, ReachConfig},
		{"service_removed", func(f *Fragment) { f.Services = f.Services[1:] }, ReachConfig},
		{"virtual_service", func(f *Fragment) { f.VirtualServices = []*VirtualService{testVirtualService("a", "a", "")} }, ReachConfig},
		{"mesh_config", func(f *Fragment) { f.MeshConfig = testMeshConfig() }, ReachConfig},
	} {
		f := *base
		f.Workloads, f.Services = slices.Clone(base.Workloads), slices.Clone(base.Services)
		c.edit(&f)
		if got := Compare(base, &f).Reach(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if same := Compare(base, &f).Same(); same != (c.name == "nothing") {
			t.Errorf("%s: same objects: %v", c.name, same)
		}
	}
}

// TestReadersAndTheNextMerge reads a snapshot from many goroutines while the
// next ones are built from it; the race detector judges.
func TestReadersAndTheNextMerge(t *testing.T) {
	t.Parallel()
	f := testFragment(2, 5, 4)
	f.Services[0].Selector, f.Services[0].Inline = nil, []*Workload{testWorkload("ns000", "", "10.9.9.9", "x")}
	s := testSnapshot(nil, f)
	before := fingerprint(t, s)
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for range 20 {
				if h, err := s.Fingerprint(); err != nil || h != before {
					t.Error("a reader sees another snapshot")
				}
				s.ServicesVisibleTo("ns000")
			}
		})
	}
	latest := s
	for i := range 40 {
		next := *f
		next.Workloads = slices.Delete(slices.Clone(f.Workloads), i, i+1)
		report := &HealthReport{ServiceAccount: ServiceAccount{"ns000", "sa-x"}, Address: "10.9.9.9", Health: Health(i % 3)}
		latest = testSnapshot(latest, &next, &Fragment{Source: "agents", Health: []*HealthReport{report}})
	}
	readers.Wait()
	if fingerprint(t, s) != before {
		t.Error("the snapshot was written to")
	}
}

func TestFragmentsOutOfOrder(t *testing.T) {
	t.Parallel()
	f := testFragment(2, 3, 2)
	shuffled := *f
	shuffled.Services, shuffled.Workloads = slices.Clone(f.Services), slices.Clone(f.Workloads)
	slices.Reverse(shuffled.Services)
	slices.Reverse(shuffled.Workloads)
	if f.Sorted() != f {
		t.Error("a sorted fragment is copied")
	}
	if !Compare(f, shuffled.Sorted()).Same() {
		t.Error("sorting does not give the sorted one")
	}
	if fingerprint(t, testSnapshot(nil, &shuffled)) != fingerprint(t, testSnapshot(nil, f)) {
		t.Error("the order of a fragment shows in the snapshot")
	}
}

func TestKeepAndRemoved(t *testing.T) {
	t.Parallel()
	prev := testFragment(1, 4, 2)
	next := &Fragment{Source: "files", Services: prev.Services[1:], Workloads: prev.Workloads[:5]}
	var removed []Key
	keys := map[Key]bool{}
	for _, r := range Compare(prev, next).Removed() {
		removed = append(removed, r.Key)
		keys[r.Key] = true
	}
	want := []Key{prev.Services[0].Key, prev.Workloads[5].Key, prev.Workloads[6].Key, prev.Workloads[7].Key}
	if diff := cmp.Diff(want, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	if !Compare(prev, Keep(prev, next, keys)).Same() {
		t.Error("keeping all that is gone does not give what was")
	}
	if Keep(prev, next, nil) != next {
		t.Error("keeping nothing copies")
	}
	if got := prev.Count("ns000"); got != 12 || prev.Count("other") != 0 || prev.Count("") != 12 {
		t.Errorf("counted %d", got)
	}
}

// An object that gains or loses one of its hosts was updated, though its others are
// as they were: here one is hidden, as somebody writes a service of that host.
func TestObjectThatLosesAHostIsUpdated(t *testing.T) {
	t.Parallel()
	derived := &Fragment{Source: "consul", Services: []*Service{testDerived("ns", "a", 80), testDerived("ns", "a", 80)}}
	derived.Services[1].Hostname = "b.service.consul"
	written := testService("ns", "w", "")
	written.Hostname = "b.service.consul"
	files := &Fragment{Source: "files", Services: []*Service{written}}
	none := &Fragment{Source: "files"}
	s := testSnapshot(nil, none, derived)
	for _, f := range []*Fragment{files, none} {
		s = testSnapshot(s, f, derived)
		i := slices.IndexFunc(s.Changes, func(c Change) bool { return c.Key == derived.Services[0].Key })
		if i < 0 || s.Changes[i].Op != Updated {
			t.Errorf("the changes are %v", s.Changes)
		}
	}
}
