package mesh

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
)

// written is a service that is written down for a host of the catalog.
func written(namespace, name, host string, exports ...string) *Service {
	s := testService(namespace, name, "")
	s.Hostname, s.ExportTo = Hostname(host), exports
	return s
}

func visible(s *Snapshot, namespace string) string {
	var names []string
	for _, svc := range s.ServicesVisibleTo(namespace) {
		names = append(names, svc.Namespace+"/"+svc.Name)
	}
	return strings.Join(names, " ")
}

// hostCase is what is written down for a host of the catalog, and what comes of it.
type hostCase struct {
	name    string
	written []*Service
	want    map[string]string // what a namespace sees on the host
	told    []string          // of each conflict
	inForce bool
}

const takenHost = "web.service.consul"

func hostCases() []hostCase {
	const host = takenHost
	return []hostCase{
		{
			name: "nobody_defines_it", want: map[string]string{"default": "default/consul/web", "b": "default/consul/web"}, inForce: true,
		},
		{
			name: "for_all", written: []*Service{written("b", "mine", host)},
			want: map[string]string{"default": "b/mine", "b": "b/mine", "c": "b/mine"}, told: []string{"ServiceEntry b/mine"},
		},
		{
			name: "in_the_same_namespace", written: []*Service{written("default", "mine", host, "*")},
			want: map[string]string{"default": "default/mine", "b": "default/mine"}, told: []string{"ServiceEntry default/mine"},
		},
		{
			name: "for_one_namespace_alone", written: []*Service{written("b", "mine", host, "b")}, inForce: true,
			want: map[string]string{"default": "default/consul/web", "b": "b/mine", "c": "default/consul/web"}, told: []string{"namespaces b: "},
		},
		{
			name: "at_home_alone", written: []*Service{written("default", "mine", host, "default")}, inForce: true,
			want: map[string]string{"default": "default/mine", "b": "default/consul/web"}, told: []string{"namespaces default: "},
		},
		{
			name: "for_a_neighbour", written: []*Service{written("b", "mine", host, "c", "default")}, inForce: true,
			want: map[string]string{"default": "b/mine", "b": "default/consul/web", "c": "b/mine"}, told: []string{"namespaces c, default: "},
		},
		{
			name: "for_nobody", written: []*Service{written("b", "mine", host, "~")}, inForce: true,
			want: map[string]string{"default": "default/consul/web", "b": "default/consul/web"},
		},
		{
			name: "a_wildcard_is_another_host", written: []*Service{written("b", "mine", "*.service.consul")}, inForce: true,
			want: map[string]string{"default": "default/consul/web"},
		},
	}
}

func TestDeclaredHostIsNotTakenByCatalog(t *testing.T) {
	t.Parallel()
	const host = takenHost
	catalog := &Fragment{Source: "consul", Services: []*Service{testDerived("default", "db", 80), testDerived("default", "web", 80)}}
	for _, c := range hostCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			before := testSnapshot(nil, &Fragment{Source: "files"}, catalog)
			files := &Fragment{Source: "files", Services: c.written}
			s := testSnapshot(before, files, catalog)
			for ns, want := range c.want {
				var got []string
				for _, svc := range s.ServicesVisibleTo(ns) {
					if svc.Hostname == host {
						got = append(got, svc.Namespace+"/"+svc.Name)
					}
				}
				if diff := cmp.Diff([]string{want}, got); diff != "" {
					t.Errorf("%s sees (-want +got):\n%s", ns, diff)
				}
			}
			if got := slices.Contains(s.Services, catalog.Services[1]); got != c.inForce {
				t.Errorf("the catalog's service is in force: %v", got)
			}
			if len(s.Conflicts) != len(c.told) {
				t.Fatalf("conflicts: %v", s.Conflicts)
			}
			for i, x := range s.Conflicts {
				if x.Host != host || x.Dropped != catalog.Services[1].Origin || x.Kept != c.written[0].Origin || !strings.Contains(x.Reason, c.told[i]) {
					t.Errorf("conflict: %+v", x)
				}
			}
			back := testSnapshot(s, &Fragment{Source: "files"}, catalog)
			if fingerprint(t, back) != fingerprint(t, before) {
				t.Error("it does not come back once nobody else has the host")
			}
			if gone := slices.ContainsFunc(back.Changes, func(x Change) bool { return x.Key == catalog.Services[1].Key && x.Op == Added }); gone == c.inForce {
				t.Errorf("changes: %v", back.Changes)
			}
		})
	}
}

// TestMergingIsNoConflict: a service that selects the instances of a catalog's
// stands for it.
func TestMergingIsNoConflict(t *testing.T) {
	t.Parallel()
	merged := written("default", "mine", "web.service.consul")
	merged.Selector = map[string]string{LabelConsulService: "web"}
	vm := testWorkload("default", "vm", "10.0.0.1", "web")
	vm.Labels = map[string]string{LabelConsulService: "web"}
	instance := testInstance("default", "10.0.0.2", "web")
	s := testSnapshot(nil, &Fragment{Services: []*Service{merged}, Workloads: []*Workload{vm}},
		&Fragment{Services: []*Service{testDerived("default", "web", 80)}, Workloads: []*Workload{instance}})
	if len(s.Conflicts) > 0 || len(s.Services) != 1 || !slices.Equal(s.EndpointsOf(merged), []*Workload{instance, vm}) {
		t.Errorf("%d services, %d endpoints, conflicts %v", len(s.Services), len(s.EndpointsOf(merged)), s.Conflicts)
	}
}

// TestExportsByDefault: where the mesh's settings decide who sees a service, a
// change of them decides anew who has the host.
func TestExportsByDefault(t *testing.T) {
	t.Parallel()
	fragments := []*Fragment{
		{Source: "files", Services: []*Service{written("b", "mine", "web.service.consul")}},
		{Source: "consul", Services: []*Service{testDerived("default", "web", 80, "*")}},
	}
	config := testMeshConfig()
	s := NewSnapshot(nil, config, fragments)
	if got := visible(s, "default"); got != "b/mine" {
		t.Errorf("exported to all: default sees %s", got)
	}
	private := &MeshConfig{Meta: config.Meta, Spec: proto.CloneOf(config.Spec)}
	private.Spec.DefaultServiceExportTo = []string{"."}
	s = NewSnapshot(s, private, fragments)
	if got := visible(s, "default"); got != "default/consul/web" {
		t.Errorf("private by default: default sees %s", got)
	}
	if got := visible(s, "b"); got != "b/mine" {
		t.Errorf("private by default: b sees %s", got)
	}
}

// TestCatalogInstancesNeedSelector: what a registration says of an instance in
// labels puts it behind no service that does not ask for instances.
func TestCatalogInstancesNeedSelector(t *testing.T) {
	t.Parallel()
	everything := testService("a", "everything", "")
	everything.Selector = map[string]string{}
	byApp := testService("a", "by-app", "pay")
	merged := testService("a", "merged", "")
	merged.Selector = map[string]string{LabelConsulService: "pay", "env": "prod"}
	derived := testDerived("a", "pay", 80)
	manifest := testWorkload("a", "vm", "10.0.0.1", "pay")
	joined := testWorkload("a", "joined", "10.0.0.3", "pay")
	joined.Labels[LabelConsulService] = "pay"
	instance := testInstance("a", "10.0.0.2", "pay")
	f := &Fragment{Source: "files", Services: []*Service{byApp, derived, everything, merged}, Workloads: []*Workload{instance, joined, manifest}}
	for _, s := range []*Snapshot{testSnapshot(nil, f), testSnapshot(testSnapshot(nil, &Fragment{Services: f.Services}), f), testSnapshot(testSnapshot(nil, &Fragment{Workloads: f.Workloads}), f)} {
		for _, c := range []struct {
			svc  *Service
			want []*Workload
		}{
			{everything, []*Workload{manifest}},
			{byApp, []*Workload{manifest}},
			{merged, []*Workload{instance, joined}},
			{derived, []*Workload{instance, joined}},
		} {
			if got := s.EndpointsOf(c.svc); !slices.Equal(got, c.want) {
				t.Errorf("%s: %d endpoints, want %d", c.svc.Name, len(got), len(c.want))
			}
		}
		if got := s.ServicesOf(instance); !slices.Equal(got, []*Service{merged, derived}) {
			t.Errorf("the instance is behind %d services", len(got))
		}
	}
}

// TestTwoDatacentersOneService: a service is one thing in all datacenters that
// agree on it, and where they do not that is said.
func TestTwoDatacentersOneService(t *testing.T) {
	t.Parallel()
	dc := func(source string, services ...*Service) *Fragment {
		for _, svc := range services {
			svc.Origin = &Origin{Source: source, Path: "consul://" + source + "/service"}
		}
		return &Fragment{Source: source, Services: services}
	}
	one, two := testDerived("default", "web", 80), testDerived("default", "web", 80)
	a, b := dc("dc1", one), dc("dc2", two)
	s := testSnapshot(nil, a, b)
	if len(s.Conflicts) > 0 || len(s.Services) != 1 || s.Services[0] != one {
		t.Fatalf("equal services of two datacenters: %d in force, conflicts %v", len(s.Services), s.Conflicts)
	}
	s = testSnapshot(s, dc("dc1"), b)
	if len(s.Services) != 1 || s.Services[0] != two {
		t.Fatal("the second datacenter does not take over")
	}
	if len(s.Changes) > 0 {
		t.Errorf("something is told to have changed: %v", s.Changes)
	}
	other := testDerived("default", "web", 90)
	c := dc("dc2", other)
	for _, s := range []*Snapshot{testSnapshot(nil, a, c), testSnapshot(testSnapshot(nil, a, b), a, c), testSnapshot(testSnapshot(nil, b, c), a, c)} {
		if len(s.Conflicts) != 1 || s.Services[0] != one {
			t.Fatalf("unequal services: conflicts %v", s.Conflicts)
		}
		x := s.Conflicts[0]
		if x.Kept != one.Origin || x.Dropped != other.Origin || !strings.Contains(x.Reason, "ports http/80/HTTP and http/90/HTTP") {
			t.Errorf("conflict: %+v", x)
		}
	}
}

// TestCostOfCatalogs: one service more costs one, in a mesh in which thousands of
// hosts are defined twice.
func TestCostOfCatalogs(t *testing.T) {
	t.Parallel()
	files, consul := &Fragment{Source: "files"}, &Fragment{Source: "consul"}
	for i := range 2000 {
		name := fmt.Sprintf("s%04d", i)
		consul.Services = append(consul.Services, testDerived("default", name, 80))
		if i%2 == 0 {
			files.Services = append(files.Services, written("b", name, name+".service.consul"))
		}
	}
	s := testSnapshot(nil, files, consul)
	if len(s.Services) != 2000 || len(s.Conflicts) != 1000 {
		t.Fatalf("%d services, %d conflicts", len(s.Services), len(s.Conflicts))
	}
	next := *files
	next.Services = append(slices.Clone(files.Services), written("b", "z", "s0001.service.consul"))
	after := testSnapshot(s, &next, consul)
	if len(after.Conflicts) != 1001 || after.Merged() != 2 {
		t.Errorf("%d conflicts, %d objects decided", len(after.Conflicts), after.Merged())
	}
	if again := testSnapshot(after, &next, consul); again.Merged() != 0 || !sameSlice(again.Conflicts, after.Conflicts) {
		t.Errorf("%d objects decided though nothing changed, and other conflicts", again.Merged())
	}
	lone := *consul
	lone.Services = slices.Delete(slices.Clone(consul.Services), 0, 1) // one that is hidden
	if gone := testSnapshot(after, &next, &lone); gone.Merged() != 0 || len(gone.Conflicts) != 1000 {
		t.Errorf("%d objects decided, %d conflicts", gone.Merged(), len(gone.Conflicts))
	}
}
