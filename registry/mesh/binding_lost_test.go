package mesh

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// declared reports whether an unbound source, or a catalog, declares something that overlaps with a host; exactly, that
// an unbound source declares that host.
func (l *life) declared(h Hostname) (overlapping, exactly bool) {
	for i, objects := range l.objects {
		for _, x := range objects {
			svc, is := x.(*Service)
			if !is || l.bindings[i] != nil || !svc.Hostname.canonical().Overlaps(h) {
				continue
			}
			overlapping = true
			exactly = exactly || svc.Hostname.canonical() == h
		}
	}
	return overlapping, exactly
}

// ownHost reports whether a source has a host for everybody by the documentation: by a pattern, as a name of its
// namespace, or by a title, where nobody who comes before it has anything of it.
func (l *life) ownHost(s *Snapshot, source int, h Hostname) bool {
	b := l.bindings[source]
	overlapping, exactly := l.declared(h)
	switch {
	case isAddress(h):
		return l.ownAddress(source, h)
	case b.covers(h):
		return !exactly
	default:
		return !overlapping && !l.patternOfOthers(source, h) && l.hasTitle(s, b, h, false)
	}
}

// ownAddress reports whether a source has an address by a pattern, and no unbound source declares it elsewhere.
func (l *life) ownAddress(source int, a Hostname) bool {
	if !l.bindings[source].covers(a) {
		return false
	}
	for i, objects := range l.objects {
		for _, x := range objects {
			if svc, is := x.(*Service); is && l.bindings[i] == nil && slices.Contains(addressNames(svc), a) {
				return false
			}
		}
	}
	return true
}

// checkNothingLost wants everybody to see what bound sources have by patterns or titles: nothing that others write
// hides it, unless an unbound source declares exactly that host, or address. It returns how many objects there were.
func (l *life) checkNothingLost(t *testing.T, s *Snapshot) int {
	t.Helper()
	count := map[Key]int{}
	for _, objects := range l.objects {
		for k := range objects {
			count[k]++
		}
	}
	exports := s.tables.restrictions.exports
	services, routes := map[string]bool{}, map[string]bool{}
	for _, x := range s.Services {
		if exportedTo(x.ExportTo, exports[0], x.Namespace, "other") {
			services[fmt.Sprint(x.Key, " ", x.Hostname)] = true
		}
	}
	for _, x := range s.VirtualServices {
		if exportedTo(x.ExportTo, exports[1], x.Namespace, "other") {
			for _, h := range x.Spec.Hosts {
				routes[fmt.Sprint(*x.Origin, " ", h)] = true
			}
		}
	}
	n := 0
	for i, objects := range l.objects {
		for k, x := range objects {
			if l.bindings[i] == nil || count[k] > 1 {
				continue
			}
			switch x := x.(type) {
			case *Service:
				if !exportedTo(x.ExportTo, exports[0], x.Namespace, "other") || !l.ownHost(s, i, x.Hostname.canonical()) ||
					slices.ContainsFunc(addressNames(x), func(a Hostname) bool { return !l.ownAddress(i, a) }) {
					continue
				}
				if n++; !services[fmt.Sprint(x.Key, " ", x.Hostname)] {
					t.Fatalf("%s of source %d has %s %s, and others do not see it", k, i, x.Hostname, x.Addresses)
				}
			case *VirtualService:
				if !exportedTo(x.ExportTo, exports[1], x.Namespace, "other") {
					continue
				}
				for _, name := range l.ownRoutes(s, i, x) {
					if n++; !routes[fmt.Sprint(*x.Origin, " ", name)] {
						t.Fatalf("%s of source %d has %s, and others do not have its routes", k, i, name)
					}
				}
			}
		}
	}
	return n
}

// ownRoutes are the hosts of a VirtualService of which everybody has its routes: those of its source, if all addresses
// that it matches are, too; with TLS, which matches all hosts, only if all are.
func (l *life) ownRoutes(s *Snapshot, source int, vs *VirtualService) []string {
	var out []string
	b := l.bindings[source]
	all := true
	for _, h := range sniNames(vs) {
		all = all && b.covers(h)
	}
	for _, name := range vs.Spec.Hosts {
		h := Hostname(name).canonical()
		if b.covers(h) || !routesGateways(vs) && !isAddress(h) && !l.contested(source, h) && l.ownHost(s, source, h) {
			out = append(out, name)
		} else {
			all = false
		}
	}
	if len(vs.Spec.Tls) > 0 && !all || routesSidecars(vs) && slices.ContainsFunc(subnetNames(vs), func(a Hostname) bool { return !l.ownAddress(source, a) }) {
		return nil
	}
	return out
}

// contested reports whether another source has something of a host, which is no pattern's.
func (l *life) contested(source int, h Hostname) bool {
	for i, objects := range l.objects {
		for _, x := range objects {
			switch x := x.(type) {
			case *Service:
				if i != source && x.Hostname.canonical().Overlaps(h) {
					return true
				}
			case *VirtualService:
				if l.bindings[i] == nil && slices.ContainsFunc(routedNames(x), h.Overlaps) {
					return true
				}
			}
		}
	}
	return false
}

// saved are the grants as a server reads them after a restart.
func (l *life) saved(t *testing.T) *Grants {
	t.Helper()
	if l.grants == nil {
		return nil
	}
	data, err := json.Marshal(l.grants.All())
	if err != nil {
		t.Fatal(err)
	}
	var list []Grant
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	return NewGrants(list)
}

// upgrade makes grants of a record at random, as the first start after an upgrade does. Another server makes the same of
// the same record in another order. A recorded host that nobody else has is not lost.
func (l *life) upgrade(t *testing.T) {
	t.Helper()
	var recorded []Recorded
	for range l.rng.IntN(12) {
		i := l.rng.IntN(len(l.bindings))
		r := Recorded{Name: Hostname(l.pick(l.host(i), l.address(), l.port())), Namespace: fmt.Sprintf("ns%d", l.rng.IntN(5)), Routes: l.rng.IntN(4) == 0}
		if keys := slices.SortedFunc(maps.Keys(l.objects[i]), Key.Compare); len(keys) > 0 && l.bindings[i] != nil && l.rng.IntN(4) > 0 {
			if svc, is := l.objects[i][keys[l.rng.IntN(len(keys))]].(*Service); is {
				r.Name, r.Namespace = svc.Hostname, svc.Namespace
			}
		}
		if r.Name = r.Name.canonical(); isAddress(r.Name) {
			p, _ := prefixOf(r.Name)
			r.Name = nameOf(p)
		}
		if !slices.ContainsFunc(recorded, func(o Recorded) bool { return o.Name == r.Name }) { // a name has one owner on record
			recorded = append(recorded, r)
		}
	}
	list := InheritGrants(l.input(l.s, l.config), recorded)
	again := slices.Clone(recorded)
	l.rng.Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
	in := l.shuffled()
	in.Prev, in.Grants = nil, nil
	if other := InheritGrants(in, again); !slices.Equal(list, other) {
		t.Fatalf("another server makes other grants: %v and %v", list, other)
	}
	for _, g := range list {
		if !slices.ContainsFunc(l.boundTo(g.Namespace), func(i int) bool { return !l.patternOfOthers(i, g.Name) }) {
			t.Fatalf("%v is granted to a namespace that nobody is bound to, or is another's by a pattern", g)
		}
	}
	l.grants = nil
	before := Merge(l.input(l.s, l.config))
	l.grants = NewGrants(list)
	after := Merge(l.input(l.s, l.config))
	for _, r := range recorded {
		l.checkInherited(t, recorded, r, before, after)
		l.checkInheritedPort(t, r, after)
	}
	l.checkInheritedRoutes(t, recorded, before, after)
	for _, svc := range before.Services { // a grant takes what somebody has by a wider title, and nothing else
		i := sourceOf(&svc.Meta)
		granted := slices.ContainsFunc(list, func(g Grant) bool { return overlapping(g.Name, svc.Hostname.canonical()) })
		if !granted && l.forOthers(svc) && !l.seen(after, svc) {
			t.Fatalf("%s of source %d, for %s, is not seen any more: %v", svc.Key, i, svc.Hostname, list)
		}
	}
}

// boundTo are the sources that are bound to a namespace.
func (w *tenants) boundTo(namespace string) []int {
	var out []int
	for i, b := range w.bindings {
		if b != nil && b.has(namespace) {
			out = append(out, i)
		}
	}
	return out
}

// checkInherited wants services of a recorded host to be seen after an upgrade, if nobody has something of the name that
// comes before the record: a pattern, an unbound source, the catalog, a title, or another record below or above.
func (l *life) checkInherited(t *testing.T, recorded []Recorded, r Recorded, before, after *Snapshot) {
	t.Helper()
	if r.Routes || isAddress(r.Name) || r.Name == "" || r.Name[0] == ':' || len(l.titlesOf(before, r.Name, false)) > 0 {
		return
	}
	if overlapping, _ := l.declared(r.Name); overlapping {
		return
	}
	if slices.ContainsFunc(recorded, func(o Recorded) bool { return o.Name != r.Name && overlapping(o.Name, r.Name) }) {
		return
	}
	for _, i := range l.boundTo(r.Namespace) {
		if l.patternOfOthers(i, r.Name) {
			continue
		}
		for k, x := range l.objects[i] {
			svc, is := x.(*Service)
			if !is || svc.Hostname.canonical() != r.Name || k.Namespace != r.Namespace || len(addressNames(svc)) > 0 || !l.forOthers(svc) {
				continue
			}
			if l.inherited++; !l.seen(after, svc) {
				t.Fatalf("%s of source %d had %s by the record, and others do not see it after the upgrade: %v", k, i, r.Name, l.grants.All())
			}
		}
	}
}

// port is a port on record, of services that are not HTTP, or of those of a namespace that are.
func (w *tenants) port() string {
	return w.pick(":80", ":443", ":3306", fmt.Sprintf(":ns%d:80", w.rng.IntN(5)), fmt.Sprintf(":ns%d:3306", w.rng.IntN(5)))
}

// checkInheritedPort wants services of a namespace that had a port by record before all of bound sources that had not.
func (l *life) checkInheritedPort(t *testing.T, r Recorded, after *Snapshot) {
	t.Helper()
	p, is := recordedPort(r.Name)
	if !is {
		return
	}
	if slices.ContainsFunc(l.grants.All(), func(g Grant) bool {
		port, is := g.Port()
		return is && port == p.port && g.Namespace != r.Namespace
	}) {
		return
	}
	foreign := false
	l.servicesForOthers(func(i int, svc *Service) bool {
		foreign = foreign || l.bindings[i] == nil && slices.ContainsFunc(svc.Ports, func(x Port) bool { return x.Number == p.port })
		return !foreign
	})
	for _, svc := range after.Services {
		if i := sourceOf(&svc.Meta); foreign || l.bindings[i] == nil || svc.Namespace != r.Namespace || !l.forOthers(svc) || !slices.Contains(opaquePorts(svc, p.http), p.port) {
			continue
		}
		if l.inherited++; slices.Contains(svc.Yields, p.port) {
			t.Fatalf("%s had the port %d by the record, and comes behind others after the upgrade: %v", svc.Key, p.port, l.grants.All())
		}
	}
}

// checkInheritedRoutes wants routes at gateways of hosts of which nobody else has anything for everybody after an
// upgrade, as they were before.
func (l *life) checkInheritedRoutes(t *testing.T, recorded []Recorded, before, after *Snapshot) {
	t.Helper()
	routed := map[string]bool{}
	for _, vs := range after.VirtualServices {
		if exportedTo(vs.ExportTo, l.config.Spec.GetDefaultVirtualServiceExportTo(), vs.Namespace, "other") {
			for _, h := range vs.Spec.GetHosts() {
				routed[fmt.Sprint(*vs.Origin, h)] = true
			}
		}
	}
	for _, part := range before.VirtualServices { // of what is in force
		i := sourceOf(&part.Meta)
		vs, is := l.objects[i][Key{KindVirtualService, part.Namespace, strings.TrimSuffix(part.Name, ownNamespacePart)}].(*VirtualService)
		if !is || l.bindings[i] == nil || isDelegate(vs) || routesSidecars(vs) || len(vs.Spec.GetTls()) > 0 ||
			!exportedTo(vs.ExportTo, l.config.Spec.GetDefaultVirtualServiceExportTo(), vs.Namespace, "other") {
			continue
		}
		// One host of somebody else hides a VirtualService from others with all its hosts, before and after.
		if slices.ContainsFunc(vs.Spec.GetHosts(), func(name string) bool {
			h := Hostname(name).canonical()
			return isAddress(h) || l.patternOfOthers(i, h) || l.named(vs.Namespace, h) || len(l.titlesOf(before, h, true)) > 0 ||
				slices.ContainsFunc(recorded, func(r Recorded) bool { return overlapping(r.Name, h) })
		}) {
			continue
		}
		for _, name := range vs.Spec.GetHosts() {
			h := Hostname(name).canonical()
			if l.inherited++; !routed[fmt.Sprint(*vs.Origin, name)] {
				t.Fatalf("%s of source %d routed %s at gateways, and does not after the upgrade: %v", vs.Key, i, h, l.grants.All())
			}
		}
	}
}

// named reports whether objects of other namespaces name something of a host.
func (l *life) named(namespace string, h Hostname) bool {
	for _, objects := range l.objects {
		for _, x := range objects {
			switch x := x.(type) {
			case *Service:
				if x.Namespace != namespace && (x.Hostname.canonical().Overlaps(h) || slices.ContainsFunc(aliasesOf(x), h.Overlaps)) {
					return true
				}
			case *VirtualService:
				if x.Namespace != namespace && slices.ContainsFunc(routedNames(x), h.Overlaps) {
					return true
				}
			}
		}
	}
	return false
}
