package addresses

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// world is a table with the services that it knows.
type world struct {
	*Table
	t        *testing.T
	services map[string]*mesh.Service
	// now is all that Assign has returned.
	now map[mesh.NamespacedHost]mesh.Allocation
}

func newWorld(t *testing.T, ipv4 string, saved Saved) *world {
	t.Helper()
	p, err := ParseRange(ipv4)
	if err != nil {
		t.Fatal(err)
	}
	table, err := New(p, saved)
	if err != nil {
		t.Log(err)
	}
	return &world{Table: table, t: t, services: map[string]*mesh.Service{}, now: map[mesh.NamespacedHost]mesh.Allocation{}}
}

func service(host string, own ...string) *mesh.Service {
	namespace, name, _ := strings.Cut(host, "/")
	return &mesh.Service{
		Meta:     mesh.Meta{Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: namespace, Name: name}},
		Hostname: mesh.Hostname(name), Resolution: mesh.ResolutionStatic, Addresses: own,
	}
}

func (w *world) add(bound bool, list ...*mesh.Service) {
	for _, svc := range list {
		w.services[svc.Namespace+"/"+svc.Name] = svc
		w.Change([]mesh.Delta[*mesh.Service]{{New: svc}}, bound)
	}
}

func (w *world) remove(hosts ...string) {
	for _, h := range hosts {
		w.Change([]mesh.Delta[*mesh.Service]{{Old: w.services[h]}}, false)
		delete(w.services, h)
	}
}

func (w *world) removeBound(h string) {
	w.Change([]mesh.Delta[*mesh.Service]{{Old: w.services[h]}}, true)
	delete(w.services, h)
}

func (w *world) take(changed map[mesh.NamespacedHost]mesh.Allocation) {
	w.t.Helper()
	for h, a := range changed {
		if w.now[h] = a; a.IsZero() {
			delete(w.now, h)
		}
	}
	taken := map[netip.Addr]mesh.NamespacedHost{}
	for h, a := range w.now {
		for _, ip := range []netip.Addr{a.IPv4, a.IPv6} {
			if !ip.IsValid() {
				continue
			}
			if other, twice := taken[ip]; twice {
				w.t.Fatalf("%v and %v have %s", h, other, ip)
			}
			taken[ip] = h
		}
		if slot, ok := slotOf(w.ipv4, a.IPv4); a.IPv4.IsValid() && (!ok || slotAddress(w.ipv4, slot) != a.IPv4) {
			w.t.Fatalf("%v has %s", h, a.IPv4)
		}
	}
}

func text(a mesh.Allocation) string {
	out := []string{}
	if a.IPv4.IsValid() {
		out = append(out, a.IPv4.String())
	}
	for word, is := range map[string]bool{"moved": a.Moved, "full": a.Full, "refused": len(a.Refused) > 0} {
		if is {
			out = append(out, word)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}
