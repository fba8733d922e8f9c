package registry

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// fakeNames has the answers that a test gives it.
type fakeNames struct {
	changed chan struct{}

	mu      sync.Mutex // guards all following fields
	wanted  []string
	asked   map[string]bool
	current *mesh.GatewayAddresses
}

func newFakeNames() *fakeNames {
	return &fakeNames{changed: make(chan struct{}, 1), asked: map[string]bool{}, current: mesh.NewGatewayAddresses(nil)}
}

func (n *fakeNames) Want(names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wanted = names
}

func (n *fakeNames) wantedNow() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.wanted
}

func (n *fakeNames) Addresses() *mesh.GatewayAddresses {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.current
}

func (n *fakeNames) Settled(names []string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !slices.ContainsFunc(names, func(name string) bool { return !n.asked[name] })
}

func (n *fakeNames) Changed() <-chan struct{} { return n.changed }

// answer is the answer for one name, and for no other.
func (n *fakeNames) answer(name string, addresses ...string) {
	n.mu.Lock()
	n.asked[name] = true
	var list []netip.Addr
	for _, a := range addresses {
		list = append(list, netip.MustParseAddr(a))
	}
	if len(list) > 0 {
		n.current = mesh.NewGatewayAddresses(map[string][]netip.Addr{name: list})
	}
	n.mu.Unlock()
	notify(n.changed)
}

// via is a source of one network with a gateway.
func via(address string) *mesh.Fragment {
	f := networksOf(1, 1)
	f.MeshNetworks.Spec.Networks["net-00"].Gateways[0].Gw = &meshconfig.Network_IstioNetworkGateway_Address{Address: address}
	f.MeshNetworks.Hash[2] = byte(len(address))
	f.Workloads = workloads("a", 0, 1, "x")
	return f
}

// TestNamesOfGatewaysAreAwaited: configuration that names a gateway for the first time waits for its
// addresses, 3 s at most; what changes then is pushed at once, and takes nothing back.
func TestNamesOfGatewaysAreAwaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, names := newFakeSource("a"), newFakeNames()
		x := run(t, Config{Sources: []Source{a}, GatewayNames: names, DebounceAfter: 100 * time.Millisecond})
		gateway := func(want string) {
			t.Helper()
			if got := x.Snapshot().MeshNetworks.Spec.GetNetworks()["net-00"].GetGateways()[0].GetAddress(); got != want {
				t.Errorf("the gateway is %s, want %s", got, want)
			}
		}
		a.say(via("gw.example"))
		x.want(namesWait-time.Second, 0, "the address is awaited at the start")
		names.answer("gw.example", "203.0.113.1")
		x.want(0, 1, "it is there")
		gateway("203.0.113.1")
		names.answer("gw.example", "203.0.113.2")
		x.want(10*time.Millisecond, 1, "another address is pushed by itself")
		gateway("203.0.113.2")
		names.answer("gw.example")
		x.want(time.Second, 0, "no answer changes nothing")

		a.say(via("slow.example"))
		x.want(namesWait-time.Millisecond, 0, "another name is awaited")
		gateway("203.0.113.2")
		x.want(2*time.Millisecond, 1, "for long enough")
		gateway("slow.example")
		names.answer("slow.example", "203.0.113.3")
		x.want(10*time.Millisecond, 1, "an address that comes later")
		gateway("203.0.113.3")
		if !slices.Equal(names.wantedNow(), []string{"slow.example"}) {
			t.Errorf("wanted: %q", names.wantedNow())
		}
	})
}

// TestLateSourceIsAwaited: a source that comes after the first snapshot waits for its addresses as well, though
// others' endpoints are pushed meanwhile.
func TestLateSourceIsAwaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b, names := newFakeSource("a"), newFakeSource("b"), newFakeNames()
		x := run(t, Config{Sources: []Source{a, b}, GatewayNames: names, SourceWait: time.Second, DebounceAfter: 100 * time.Millisecond})
		a.say(&mesh.Fragment{Workloads: workloads("a", 0, 1, "x")})
		x.want(2*time.Second, 1, "without the source that is missing")
		late := via("gw.example")
		late.Workloads = nil
		b.say(late)
		a.say(&mesh.Fragment{Workloads: workloads("a", 0, 2, "x")})
		x.want(time.Second, 1, "endpoints of the other source")
		if s := x.Snapshot(); len(s.Workloads) != 2 || s.MeshNetworks != nil || !slices.Equal(s.Missing, []string{"b"}) {
			t.Fatalf("%d workloads, networks %v, missing %q", len(s.Workloads), s.MeshNetworks, s.Missing)
		}
		names.answer("gw.example", "203.0.113.1")
		x.want(0, 1, "the address is there")
		if s := x.Snapshot(); s.Incomplete || s.MeshNetworks.Spec.GetNetworks()["net-00"].GetGateways()[0].GetAddress() != "203.0.113.1" {
			t.Errorf("incomplete %t, networks %v", s.Incomplete, s.MeshNetworks)
		}
	})
}
