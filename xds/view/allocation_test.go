package view

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
)

// allocated is an allocation that ends in n.
func allocated(n byte) mesh.Allocation {
	return mesh.Allocation{IPv4: netip.AddrFrom4([4]byte{240, 240, 0, n}), IPv6: netip.AddrFrom16([16]byte{0x20, 1, 0, 2, 15: n})}
}

// allocating is a mesh of services with and without addresses.
func allocating(t *testing.T) *meshFixture {
	t.Helper()
	w := newMeshFixture(t)
	w.service("shop", "http.mesh", 80)
	for i, p := range []mesh.Protocol{mesh.TCP, mesh.TLS, mesh.Undeclared} {
		for _, name := range []string{"a", "b"} { // two services on one port
			w.service("shop", name+"-"+string(p)+".mesh", uint32(1000+i)).Ports[0].Protocol = p
		}
	}
	own := w.service("shop", "own.mesh", 2000)
	own.Addresses, own.Ports[0].Protocol = []string{"10.9.9.9"}, mesh.TCP
	catalog := w.service("shop", "catalog.mesh", 3000)
	catalog.Catalog, catalog.Ports[0].Protocol = true, mesh.TCP
	for _, svc := range w.f.Services {
		svc.Resolution = mesh.ResolutionStatic
	}
	return w
}

// allocations has addresses for all hosts, from a number on.
func (w *meshFixture) allocations(from byte) *mesh.Allocations {
	all := map[mesh.NamespacedHost]mesh.Allocation{}
	for i, svc := range w.f.Services {
		all[svc.NamespacedHost()] = allocated(from + byte(i))
	}
	var none *mesh.Allocations
	return none.With(all)
}

func (w *meshFixture) allocatedSnapshot(prev *mesh.Snapshot, a *mesh.Allocations) *mesh.Snapshot {
	return mesh.Merge(mesh.Input{Prev: prev, Fallback: &mesh.MeshConfig{Spec: w.mc}, Fragments: []*mesh.Fragment{smallmesh.Clone(w.f.Sorted())}, Allocations: a})
}

// outboundAddresses are the addresses of the outbound listeners by name, and the domains of
// the virtual host of http.mesh.
func outboundAddresses(v *View) (map[string][]string, []string) {
	listeners, domains := map[string][]string{}, []string{}
	for p := range v.Parts() {
		switch p := p.(type) {
		case *Listener:
			if !p.Inbound && p.Name != "virtualOutbound" {
				listeners[p.Name] = p.Addresses
			}
		case *RouteConfiguration:
			for _, vh := range p.VirtualHosts {
				if vh.Name == "http.mesh:80" {
					domains = vh.Domains
				}
			}
		default:
		}
	}
	return listeners, domains
}

// TestAllocatedAddresses: a proxy that captures has a listener at the addresses of each
// service that is not HTTP, and HTTP services answer to theirs, too. Without capture nothing
// leads to such an address, and nothing of it is sent.
func TestAllocatedAddresses(t *testing.T) {
	t.Parallel()
	w := allocating(t)
	x := NewIndex(w.allocatedSnapshot(nil, w.allocations(1)))
	p := proxyIn("shop", nil)
	for _, mode := range []Interception{InterceptRedirect, InterceptTPROXY} {
		p.Interception = mode
		listeners, domains := outboundAddresses(x.Build(p))
		want := map[string][]string{"0.0.0.0_80": {"0.0.0.0"}, "10.9.9.9_2000": {"10.9.9.9"}}
		for _, svc := range x.s.Services {
			if len(svc.Addresses) > 0 || svc.Ports[0].Protocol.IsHTTP() {
				continue
			}
			want[listenerName(svc.Allocated[0], svc.Ports[0].Number)] = svc.Allocated
		}
		if d := cmp.Diff(want, listeners); d != "" {
			t.Errorf("%s: %s", mode, d)
		}
		// The address says which service is meant, not the name in TLS.
		if l := findPart(t, x.Build(p), func(l *Listener) bool { return l.Port == 1001 }); l.InspectTLS || len(l.Chains) != 1 {
			t.Errorf("%s: TLS is inspected at an address of one service: %+v", mode, l)
		}
		if want := []string{"http.mesh", "http.mesh.", "240.240.0.1", "[2001:2::1]"}; !slices.Equal(domains, want) {
			t.Errorf("%s: http.mesh answers to %q, want %q", mode, domains, want)
		}
	}
	p.Interception = InterceptNone
	got := NewIndex(w.allocatedSnapshot(nil, w.allocations(1))).Build(p)
	if d := differenceOf(NewIndex(w.allocatedSnapshot(nil, nil)).Build(p), got); d != "" {
		t.Errorf("addresses are sent to a proxy that does not capture: %s", d)
	}
}

// TestAllocationsChange: another address is another listener, in a view that is updated as in
// one that is built from nothing, and costs a proxy without capture nothing.
func TestAllocationsChange(t *testing.T) {
	t.Parallel()
	w := allocating(t)
	s := w.allocatedSnapshot(nil, w.allocations(1))
	next := w.allocatedSnapshot(s, w.allocations(101))
	x := NewIndex(s)
	for _, mode := range []Interception{InterceptRedirect, InterceptNone} {
		p := proxyIn("shop", nil)
		p.Interception = mode
		before := x.Build(p)
		after := x.Next(next).Rebuild(before, p)
		if d := differenceOf(NewIndex(next).Build(p), after); d != "" {
			t.Errorf("%s: %s", mode, d)
		}
		if d := differenceOf(before, after); (d == "") != (mode == InterceptNone) {
			t.Errorf("%s: after other addresses: %q", mode, d)
		}
	}
}
