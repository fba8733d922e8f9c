package view

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// An outbound listener is not where the workload itself listens: its service ports, the
// ports of its Sidecar's ingress, and the addresses that these forward to.
func TestOutboundListenersAvoidOwnAddresses(t *testing.T) {
	t.Parallel()
	const own = "10.0.0.1"
	ports := []uint32{6060, 7070, 8080, 9090}
	for _, c := range []struct {
		name, sidecar string
		bind          string
		want          []uint32
	}{
		{"the application, at any address", ``, localhost, []uint32{6060, 7070, 9090}},
		{"the application, at the host's address", `{"egress":[{"bind":"10.0.0.1","hosts":["other/*"]}]}`, own, []uint32{6060, 7070, 9090}},
		{"ingress and its endpoint", `{"ingress":[{"port":{"number":9090,"protocol":"HTTP","name":"h"},"bind":"127.0.0.1","defaultEndpoint":"127.0.0.1:7070"}]}`, localhost, []uint32{6060, 8080}},
		{"ingress at another address", `{"ingress":[{"port":{"number":9090,"protocol":"HTTP","name":"h"},"bind":"10.0.0.1","defaultEndpoint":"127.0.0.9:7070"}]}`, localhost, []uint32{6060, 7070, 8080, 9090}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newMeshFixture(t)
			w.service("other", "far.mesh", ports...)
			w.service("shop", "own.mesh", 8080).Inline[0].Address = own
			if c.sidecar != "" {
				w.sidecar("shop", "default", c.sidecar)
			}
			p := proxyIn("shop", nil)
			p.Addresses, p.Interception = []string{own}, InterceptNone
			var got []uint32
			for part := range Build(w.snapshot(), p).Parts() {
				if l, ok := part.(*Listener); ok && !l.Inbound && l.BindToPort && slices.Contains(l.Addresses, c.bind) {
					got = append(got, l.Port)
				}
			}
			if slices.Sort(got); !slices.Equal(got, c.want) {
				t.Errorf("outbound listeners at %s have the ports %v, want %v", c.bind, got, c.want)
			}
		})
	}
}

// Services at one address keep their precedence, in whatever order they came.
func TestServicesAtOneAddressAreSorted(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	var services []*mesh.Service
	for i := range 4 {
		services = append(services, w.service("shop", fmt.Sprintf("s%d.mesh", 3-i), 80))
	}
	slices.SortFunc(services, comparePrecedence)
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}} {
		x := &addressIndex{}
		for _, i := range order {
			x = x.next([]mesh.Delta[*mesh.Service]{{New: services[i]}})
		}
		if got := x.at("10.0.0.9"); !slices.Equal(got, services) {
			t.Errorf("added in the order %v they are %v", order, got)
		}
	}
}

// TestAddressIndexFindsWhatThereIs changes services a few at a time and many at a time, so that the
// overlay becomes a new base, and compares the index with the services that there are.
func TestAddressIndexFindsWhatThereIs(t *testing.T) {
	t.Parallel()
	const addresses = 3 * maxOverlay
	rng := rand.New(rand.NewPCG(3, 4))
	there := map[int]*mesh.Service{}
	x, bases := &addressIndex{}, 0
	for step := range 60 {
		var changes []mesh.Delta[*mesh.Service]
		for range []int{1, 5, maxOverlay}[rng.IntN(3)] {
			n := rng.IntN(addresses)
			d := mesh.Delta[*mesh.Service]{Old: there[n]}
			if slices.ContainsFunc(changes, func(c mesh.Delta[*mesh.Service]) bool {
				return c.Old == d.Old && d.Old != nil || c.New == d.Old && d.Old != nil
			}) {
				continue
			}
			delete(there, n)
			if d.Old == nil || rng.IntN(2) == 0 {
				d.New = &mesh.Service{
					Meta: mesh.Meta{Key: mesh.Key{Namespace: "shop", Name: strconv.Itoa(n)}}, Hostname: mesh.Hostname(fmt.Sprint(n, ".mesh")),
					Inline: []*mesh.Workload{{Address: fmt.Sprint("address-", n)}, {Address: fmt.Sprint("shared-", n%7)}},
				}
				there[n] = d.New
			}
			changes = append(changes, d)
		}
		x = x.next(changes)
		if len(x.overlay) == 0 && len(changes) > 0 {
			bases++
		}
		want := map[string][]*mesh.Service{}
		for _, svc := range there {
			for _, w := range svc.Inline {
				want[w.Address] = append(want[w.Address], svc)
			}
		}
		for n := range addresses {
			for _, address := range []string{fmt.Sprint("address-", n), fmt.Sprint("shared-", n%7)} {
				slices.SortFunc(want[address], comparePrecedence)
				if got := x.at(address); !slices.Equal(got, want[address]) {
					t.Fatalf("step %d: %d services at %s, want %d", step, len(got), address, len(want[address]))
				}
			}
		}
		if len(x.overlay) == 0 && slices.ContainsFunc(slices.Collect(maps.Values(x.base)), func(l []*mesh.Service) bool { return len(l) == 0 }) {
			t.Fatalf("step %d: an address without services is kept", step)
		}
	}
	if bases < 5 {
		t.Errorf("only %d new bases", bases)
	}
}

// TestDefaultExportTo: objects without exportTo follow the mesh's default. Of the default
// for DestinationRules only "." counts, as in Istio (setDestinationRules in
// pilot/pkg/model/push_context.go).
func TestDefaultExportTo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		own      mesh.Exports
		defaults []string
		want     []string // of the namespaces shop, other, third for an object of shop
	}{
		{nil, nil, []string{"shop", "other", "third"}},
		{nil, []string{"*"}, []string{"shop", "other", "third"}},
		{nil, []string{"."}, []string{"shop"}},
		{nil, []string{"~"}, nil},
		{nil, []string{"other"}, []string{"other"}},
		{nil, []string{".", "third"}, []string{"shop", "third"}},
		{mesh.Exports{"*"}, []string{"."}, []string{"shop", "other", "third"}},
		{mesh.Exports{"shop"}, []string{"*"}, []string{"shop"}},
	} {
		w := newMeshFixture(t)
		w.mc.DefaultServiceExportTo, w.mc.DefaultVirtualServiceExportTo, w.mc.DefaultDestinationRuleExportTo = c.defaults, c.defaults, c.defaults
		w.service("shop", "a.mesh", 80).ExportTo = c.own
		w.service("shop", "public.mesh", 80).ExportTo = mesh.Exports{"*"}
		w.routes("shop", "r", `{"hosts":["public.mesh"],"http":[{"name":"own","route":[{"destination":{"host":"public.mesh"}}]}]}`, c.own...)
		w.rule("shop", "d", `{"host":"public.mesh","subsets":[{"name":"v1"}]}`, c.own...)
		s := w.snapshot()
		for _, ns := range []string{"shop", "other", "third"} {
			v := Build(s, proxyIn(ns, nil))
			routed := false
			for part := range v.Parts() {
				if table, ok := part.(*RouteConfiguration); ok {
					for _, h := range table.VirtualHosts {
						routed = routed || slices.ContainsFunc(h.Routes, func(r *Route) bool { return r.Rule.GetName() == "own" })
					}
				}
			}
			for what, got := range map[string]bool{
				"service":         hasCluster(v, ClusterRef{Kind: OutboundCluster, Host: "a.mesh", Port: 80}),
				"VirtualService":  routed,
				"DestinationRule": hasCluster(v, ClusterRef{Kind: OutboundCluster, Host: "public.mesh", Port: 80, Subset: "v1"}),
			} {
				want := slices.Contains(c.want, ns)
				if what == "DestinationRule" && len(c.own) == 0 {
					want = ns == "shop" || !slices.Contains(c.defaults, ".")
				}
				if got != want {
					t.Errorf("exportTo %v, defaults %v: %s sees the %s: %v, want %v", c.own, c.defaults, ns, what, got, want)
				}
			}
		}
	}
}

// The list of whom snapshots affected stays short, however many there were.
func TestAffectedListIsBounded(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.service("shop", "a.mesh", 80)
	x, s := NewIndex(w.snapshot()), w.snapshot()
	for range 3 * maxMissedSnapshots {
		s = mesh.NewSnapshot(s, s.MeshConfig, []*mesh.Fragment{&w.f})
		x = x.Next(s)
	}
	if n := len(x.affected); n > maxMissedSnapshots {
		t.Errorf("the index remembers %d snapshots", n)
	}
}
