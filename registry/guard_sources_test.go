package registry

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// catalogOf is a source of instances of the service "web".
func catalogOf(source string, from, to int) *mesh.Fragment {
	f := &mesh.Fragment{Source: source, Workloads: workloads("a", from, to, "web")}
	for i, w := range f.Workloads {
		instance := *w
		instance.Name = "consul/dc1/node/" + w.Name
		instance.Origin = &mesh.Origin{Source: source, Path: "consul://dc1/service/web"}
		f.Workloads[i] = &instance
	}
	return f
}

// TestGuardOfTwoSources: a service may have endpoints from several sources, and
// what one of them lacks is weighed against all.
func TestGuardOfTwoSources(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		others   int // endpoints from files
		from, to int // instances of the second reading, of 0 to 20
		held     int
	}{
		{"few_of_its_own_and_of_all", 0, 0, 14, 0},
		{"many_of_a_service_that_has_no_others", 0, 0, 13, 7},
		{"few_of_a_service_that_has_others", 40, 0, 13, 7}, // of the source, still
	} {
		files := &mesh.Fragment{Source: "files", Services: []*mesh.Service{service("a", "web", "web")}, Workloads: workloads("a", 100, 100+c.others, "web")}
		prev := catalogOf("consul", 0, 20)
		s := mesh.NewSnapshot(nil, fallback(), []*mesh.Fragment{files, prev})
		r := reading{
			limits: limits{share: 0.3, floor: 5, confirmAfter: 10 * time.Second}, prev: prev,
			next: catalogOf("consul", c.from, c.to), snapshot: s, window: windowOf(limits{}, prev, time.Unix(1, 0)), now: time.Unix(1, 0),
		}
		r.next.Workloads = slices.Clone(prev.Workloads[c.from:c.to])
		_, held := r.decide()
		if len(held) != c.held {
			t.Errorf("%s: %d held, want %d", c.name, len(held), c.held)
		}
	}
}

// TestGuardOfAServicesShare: where a source loses few of its objects, but many
// endpoints of one service, the endpoints from other sources count.
func TestGuardOfAServicesShare(t *testing.T) {
	t.Parallel()
	for others, want := range map[int]int{0: 6, 4: 6, 14: 0} {
		files := &mesh.Fragment{Source: "files", Services: []*mesh.Service{service("a", "web", "web")}, Workloads: workloads("a", 900, 900+others, "web")}
		prev := catalogOf("consul", 0, 6)
		prev.Workloads = append(prev.Workloads, workloads("b", 0, 100, "other")...)
		s := mesh.NewSnapshot(nil, fallback(), []*mesh.Fragment{files, prev})
		r := reading{
			limits: limits{share: 0.3, floor: 5, confirmAfter: 10 * time.Second}, prev: prev,
			next: &mesh.Fragment{Source: "consul", Workloads: prev.Workloads[6:]}, snapshot: s, window: windowOf(limits{}, prev, time.Unix(1, 0)), now: time.Unix(1, 0),
		}
		force, held := r.decide()
		if len(held) != want || len(force.Workloads) != 100+want {
			t.Errorf("beside %d from files: %d held, %d in force, want %d", others, len(held), len(force.Workloads), want)
		}
	}
}

// TestGuardOfAKeyOfTwoSources: what another source has too is not lost to the
// service.
func TestGuardOfAKeyOfTwoSources(t *testing.T) {
	t.Parallel()
	prev := catalogOf("consul:dc2", 0, 6)
	first := catalogOf("consul", 0, 6) // the same keys
	rest := workloads("b", 0, 100, "other")
	prev.Workloads = append(prev.Workloads, rest...)
	files := &mesh.Fragment{Source: "files", Services: []*mesh.Service{service("a", "web", "web")}}
	r := reading{
		limits: limits{share: 0.3, floor: 5, confirmAfter: 10 * time.Second}, prev: prev,
		next:     &mesh.Fragment{Source: "consul:dc2", Workloads: rest},
		snapshot: mesh.NewSnapshot(nil, fallback(), []*mesh.Fragment{files, first, prev}), window: windowOf(limits{}, prev, time.Unix(1, 0)), now: time.Unix(1, 0),
	}
	if _, held := r.decide(); len(held) > 0 {
		t.Errorf("%d held, though no endpoint is gone", len(held))
	}
}

// TestUnhealthyIsNoRemoval: all instances turn critical at once, and all of them
// are out at once.
func TestUnhealthyIsNoRemoval(t *testing.T) {
	t.Parallel()
	prev := catalogOf("consul", 0, 20)
	next := &mesh.Fragment{Source: "consul"}
	for _, w := range prev.Workloads {
		ill := *w
		ill.Health, ill.HealthReason = mesh.Unhealthy, "check \"http\" is critical"
		ill.Hash[0]++
		next.Workloads = append(next.Workloads, &ill)
	}
	files := &mesh.Fragment{Source: "files", Services: []*mesh.Service{service("a", "web", "web")}}
	s := mesh.NewSnapshot(nil, fallback(), []*mesh.Fragment{files, prev})
	r := reading{
		limits: limits{share: 0.3, floor: 5, confirmAfter: 10 * time.Second}, prev: prev, next: next, snapshot: s, window: windowOf(limits{}, prev, time.Unix(1, 0)), now: time.Unix(1, 0),
	}
	force, held := r.decide()
	if len(held) > 0 || force != next {
		t.Fatalf("%d held", len(held))
	}
	after := mesh.NewSnapshot(s, fallback(), []*mesh.Fragment{files, force})
	for _, w := range after.EndpointsOf(after.Services[0]) {
		if w.Health != mesh.Unhealthy {
			t.Fatalf("%s is still served", w.Key)
		}
	}
	if d := mesh.Compare(prev, next); d.Reach() != mesh.ReachHealth {
		t.Errorf("the change reaches as far as %s: it would be debounced", d.Reach())
	}
}

// TestGuardOfWhatMoved: instances that are registered anew under other names are
// not lost, and not held beside those that they are now.
func TestGuardOfWhatMoved(t *testing.T) {
	t.Parallel()
	prev := catalogOf("consul", 0, 20)
	renamed := func(n, from int) *mesh.Fragment {
		f := &mesh.Fragment{Source: "consul"}
		for i, w := range prev.Workloads[from:n] {
			next := *w
			next.Name = fmt.Sprintf("consul/dc1/node/other-%02d", i)
			f.Workloads = append(f.Workloads, &next)
		}
		return f
	}
	files := &mesh.Fragment{Source: "files", Services: []*mesh.Service{service("a", "web", "web")}}
	s := mesh.NewSnapshot(nil, fallback(), []*mesh.Fragment{files, prev})
	decide := func(next *mesh.Fragment) (*mesh.Fragment, holds) {
		r := reading{
			limits: limits{share: 0.3, floor: 5, confirmAfter: 10 * time.Second}, prev: prev, next: next, snapshot: s, window: windowOf(limits{}, prev, time.Unix(1, 0)), now: time.Unix(1, 0),
		}
		return r.decide()
	}
	if force, held := decide(renamed(20, 0)); len(held) > 0 || len(force.Workloads) != 20 {
		t.Errorf("all have other names: %d held, %d in force", len(held), len(force.Workloads))
	}
	if force, held := decide(renamed(20, 10)); len(held) != 10 || len(force.Workloads) != 20 {
		t.Errorf("half have other names, and half are gone: %d held, %d in force", len(held), len(force.Workloads))
	}
	elsewhere := renamed(20, 0)
	for _, w := range elsewhere.Workloads {
		w.Ports = map[string]uint32{"http": 9999}
	}
	if _, held := decide(elsewhere); len(held) != 20 {
		t.Errorf("at other ports: %d held", len(held))
	}
	elsewhere = renamed(20, 0)
	for _, w := range elsewhere.Workloads {
		w.ServiceAccount = "another"
	}
	if _, held := decide(elsewhere); len(held) != 20 {
		t.Errorf("of another identity: %d held", len(held))
	}
}
