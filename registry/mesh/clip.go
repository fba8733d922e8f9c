package mesh

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"time"
)

// clipping is what a snapshot knows of sources that are bound to namespaces. It
// is empty where there are none.
type clipping struct {
	// inputs are the fragments as they were given, and out as they count.
	inputs, out []*Fragment
	owners      owners
	exports     [2][]string // the defaults of services and of VirtualServices
	// services and routes are what became of objects that are not as their source
	// has them.
	services  shelves[*Service, *decision[*Service]]
	routes    shelves[*VirtualService, *decision[*VirtualService]]
	conflicts []Conflict
	rankings  rankings
	// decided are the hosts that were decided anew.
	decided []Hostname
}

// decision is what became of one object. It depends on sign and the object alone,
// besides what is to be told.
type decision[T object] struct {
	sign      string
	out       []T
	conflicts []Conflict
	clipped   bool // others do not see it, for whose names it has
}

// youngest is when an object was made that comes behind all others.
func youngest() time.Time { return time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC) }

// clip makes of the fragments what counts of them, given that some are of sources
// that are bound to namespaces. What is as its source has it is the same pointer,
// and a list in which all are is the same list. Those of unbound sources come
// first: where two have an object of one Key, theirs counts.
func (s *Snapshot) clip(prev *Snapshot, in Input) []*Fragment {
	if !slices.ContainsFunc(in.Bindings, func(b *Binding) bool { return b != nil }) {
		return in.Fragments
	}
	bindings := make([]*Binding, len(in.Fragments))
	copy(bindings, in.Bindings)
	p, c := prev.tables.clipping, &s.tables.clipping
	spec := s.MeshConfig.Spec
	*c = clipping{
		inputs:   in.Fragments,
		exports:  [2][]string{spec.GetDefaultServiceExportTo(), spec.GetDefaultVirtualServiceExportTo()},
		services: p.services, routes: p.routes, conflicts: p.conflicts,
	}
	w := &clipper{clipping: c, prev: p}
	w.owners = owners{bindings: bindings, record: in.Owners, unsettled: in.Unsettled, defaults: c.exports[0]}
	changed, known := in.Owners.since(p.owners.record)
	if !known || len(p.inputs) != len(in.Fragments) || !slices.Equal(p.owners.bindings, bindings) ||
		p.owners.unsettled != in.Unsettled || !slices.Equal(p.exports[0], c.exports[0]) || !slices.Equal(p.exports[1], c.exports[1]) ||
		!w.compare() {
		w.anew()
	} else {
		w.touchHosts(changed)
	}
	w.file()
	w.decide()
	w.assemble()
	if !slices.Equal(p.owners.bindings, bindings) {
		p.rankings = rankings{}
	}
	c.rankings = p.rankings.rank(in.Fragments, c.out, bindings)
	return boundLast(c.out, bindings)
}

// clipper makes one clipping from the one before.
type clipper struct {
	*clipping
	prev      clipping
	services  [][]Delta[*Service] // by source
	routes    [][]Delta[*VirtualService]
	workloads [][]Delta[*Workload]
	hosts     map[Hostname]bool // that are decided anew, addresses among them
	keys      map[Key]bool      // of VirtualServices that came or went
	ports     map[uint32]bool   // at which HTTP came or went, or its record did
	patches   []patches
}

// patches is how what counts of a source's fragment changes.
type patches struct {
	services []Delta[*Service]
	routes   []Delta[*VirtualService]
}

func (f *Fragment) services() []*Service {
	if f == nil {
		return nil
	}
	return f.Services
}

func (f *Fragment) virtualServices() []*VirtualService {
	if f == nil {
		return nil
	}
	return f.VirtualServices
}

func (f *Fragment) workloads() []*Workload {
	if f == nil {
		return nil
	}
	return f.Workloads
}

// compare finds what differs in the fragments; false where that cannot be done.
func (w *clipper) compare() bool {
	w.hosts = map[Hostname]bool{}
	for i, f := range w.inputs {
		services, tidy := diff(w.prev.inputs[i].services(), f.services(), compareServiceKeys)
		routes, tidy2 := diff(w.prev.inputs[i].virtualServices(), f.virtualServices(), compareKeys)
		workloads, tidy3 := diff(w.prev.inputs[i].workloads(), f.workloads(), compareKeys)
		if min(tidy, tidy2, tidy3) != strict {
			return false
		}
		w.services, w.routes, w.workloads = append(w.services, services), append(w.routes, routes), append(w.workloads, workloads)
	}
	return true
}

// anew takes everything for changed.
func (w *clipper) anew() {
	w.prev = clipping{inputs: make([]*Fragment, len(w.inputs)), owners: owners{record: w.prev.owners.record}}
	w.clipping.services, w.clipping.routes, w.conflicts = w.prev.services, w.prev.routes, nil
	w.hosts, w.services, w.routes, w.workloads = map[Hostname]bool{}, nil, nil, nil
	for _, f := range w.inputs {
		w.services, w.routes = append(w.services, added(f.services())), append(w.routes, addedAll(f.virtualServices()))
		w.workloads = append(w.workloads, addedAll(f.workloads()))
	}
	for h := range w.owners.record.All {
		w.hosts[h] = true
	}
}

func addedAll[T object](list []T) []Delta[T] {
	out := make([]Delta[T], len(list))
	for i, x := range list {
		out[i].New = x
	}
	return out
}

func (w *clipper) touchHosts(list []Hostname) {
	for _, h := range list {
		w.hosts[h] = true
	}
}

// file files what claims hosts of other namespaces under them.
func (w *clipper) file() {
	w.owners.claims = make([]claims, len(w.inputs))
	w.keys, w.ports = map[Key]bool{}, map[uint32]bool{}
	for i := range w.inputs {
		var was claims
		if len(w.prev.owners.claims) > i {
			was = w.prev.owners.claims[i]
		}
		for _, d := range w.services[i] {
			w.touchHosts(w.serviceHosts(d.Old))
			w.touchHosts(w.serviceHosts(d.New))
			w.touchHosts(w.privateNames(d.Old))
			w.touchHosts(w.privateNames(d.New))
			for _, svc := range []*Service{d.Old, d.New} {
				w.touchHosts(w.addressNames(svc))
				w.touchHosts(w.inlineNames(svc))
			}
		}
		for _, d := range w.workloads[i] {
			if d.Old == nil || d.New == nil || d.Old.Address != d.New.Address {
				w.touchHosts(w.workloadNames(d.Old))
				w.touchHosts(w.workloadNames(d.New))
			}
		}
		w.noteKeys(w.routes[i])
		w.touchPorts(w.services[i])
		for _, d := range w.routes[i] {
			w.touchHosts(w.routeHosts(d.Old))
			w.touchHosts(w.routeHosts(d.New))
		}
		w.owners.claims[i] = claims{
			services:  was.services.filed(w.services[i], CompareServices, w.serviceHosts),
			written:   filed(&was.written, w.routes[i], compareKeys, keyOf),
			routes:    was.routes.filed(w.routes[i], compareKeys, w.routeHosts),
			addresses: was.addresses.filed(w.services[i], CompareServices, w.addressNames),
			subnets:   was.subnets.filed(w.routes[i], compareKeys, w.subnetNames),
			workloads: was.workloads.filed(w.workloads[i], compareKeys, w.workloadNames),
			inline:    was.inline.filed(w.services[i], CompareServices, w.inlineNames),
			opaque:    filed(&was.opaque, w.services[i], CompareServices, w.opaquePorts),
			http:      filed(&was.http, w.services[i], CompareServices, w.httpPorts),
			aliases:   filed(&was.aliases, w.services[i], CompareServices, w.serviceAliases),
			private:   was.private.filed(w.services[i], CompareServices, w.privateNames),
		}
	}
	w.touchAliases()
}

// serviceHosts is the host that a service declares for other namespaces; none if
// its own alone sees it.
func (w *clipper) serviceHosts(svc *Service) []Hostname {
	if svc == nil || onlyOwn(svc.ExportTo, w.exports[0], svc.Namespace) {
		return nil
	}
	return []Hostname{svc.Hostname.plain()}
}

// routeHosts are the hosts for which a VirtualService routes requests of sidecars
// in other namespaces.
func (w *clipper) routeHosts(vs *VirtualService) []Hostname {
	if vs == nil || onlyOwn(vs.ExportTo, w.exports[1], vs.Namespace) {
		return nil
	}
	spec := vs.Spec
	if len(spec.GetGateways()) > 0 && !slices.Contains(spec.GetGateways(), "mesh") {
		return nil
	}
	out := make([]Hostname, 0, len(spec.GetHosts()))
	for _, h := range spec.GetHosts() {
		out = append(out, Hostname(h).plain())
	}
	out = append(out, sniNames(vs)...)
	slices.Sort(out)
	return slices.Compact(out)
}

// onlyOwn reports whether nobody but an object's own namespace sees it.
func onlyOwn(exports Exports, defaults []string, own string) bool {
	to := audienceOf(exports, defaults, own)
	return !to.all && !slices.ContainsFunc(to.namespaces, func(ns string) bool { return ns != own })
}

// concerned are the objects that name one of the hosts, or one that overlaps.
func concerned[T object](hosts map[Hostname]bool, indexes ...*nameIndex[T]) map[T]bool {
	out := map[T]bool{}
	for _, x := range indexes {
		seen := map[Hostname]bool{}
		for h := range hosts {
			x.names(h, true, func(name Hostname) bool {
				if !seen[name] {
					seen[name] = true
					for _, o := range x.get(name) {
						out[o] = true
					}
				}
				return true
			})
		}
	}
	return out
}

// withConcerned are the changes of a source, and its other objects that are to be
// decided anew.
func withConcerned[T object](deltas []Delta[T], objects map[T]bool) []Delta[T] {
	out := slices.Clone(deltas)
	for _, d := range deltas {
		delete(objects, d.New)
	}
	for x := range objects {
		out = append(out, Delta[T]{Old: x, New: x})
	}
	return out
}

// redecide decides anew for one object. It reports whether there is, or was,
// something to be told of it.
func redecide[T object](decisions *shelving[T, *decision[T]], patches *[]Delta[T], d Delta[T], decide func(T, *decision[T]) *decision[T]) bool {
	var zero T
	var was, is *decision[T]
	if d.Old != zero {
		was = decisions.get(d.Old)
	}
	if d.New != zero {
		var same *decision[T]
		if d.Old == d.New {
			same = was
		}
		is = decide(d.New, same)
	}
	if d.Old != zero && was != nil && (d.Old != d.New || is == nil) {
		decisions.drop(d.Old)
	}
	if is != nil {
		decisions.put(d.New, is)
	}
	before, after := outcome(d.Old, was), outcome(d.New, is)
	if !slices.Equal(before, after) {
		for _, x := range before {
			*patches = append(*patches, Delta[T]{Old: x})
		}
		for _, x := range after {
			*patches = append(*patches, Delta[T]{New: x})
		}
	}
	return was != nil && len(was.conflicts) > 0 || is != nil && len(is.conflicts) > 0
}

// outcome is what became of an object.
func outcome[T object](x T, v *decision[T]) []T {
	var zero T
	switch {
	case x == zero:
		return nil
	case v != nil:
		return v.out
	default:
		return []T{x}
	}
}

// service decides for a service of a bound source; nil means that it stays as it
// is.
func (w *clipper) service(source int, svc *Service, was *decision[*Service]) *decision[*Service] {
	if len(w.serviceHosts(svc)) == 0 {
		return nil
	}
	v, created := &decision[*Service]{sign: "service"}, youngest()
	exports := ownOnly(svc.ExportTo, w.exports[0], svc.Namespace)
	if r := w.owners.service(source, svc); r != nil {
		v.clipped, v.conflicts = true, []Conflict{foreign(&svc.Meta, svc.Hostname, r)}
	} else if a, r := w.owners.serviceAddress(source, svc); r != nil {
		v.clipped, v.conflicts = true, []Conflict{foreignAddress(&svc.Meta, a, r)}
	} else if private := w.owners.privateAddresses(source, svc.Namespace, addressNames(svc)); len(private) > 0 {
		without := namespacesOf(private)
		v.conflicts = []Conflict{keptOutOf(&svc.Meta, addressNames(svc)[0], private[0])}
		v.sign = fmt.Sprintf("service without %q", without)
		exports, created = exportsWithout(svc.ExportTo, w.exports[0], svc.Namespace, without), svc.Created
	} else {
		exports, created = svc.ExportTo, svc.Created
	}
	var yields []uint32
	if v.sign != "service" || len(v.conflicts) == 0 {
		yields = w.owners.yields(source, svc)
		v.conflicts = append(v.conflicts, behind(svc, yields)...)
	}
	if len(v.conflicts)+len(yields) == 0 {
		return nil
	}
	v.sign += fmt.Sprint(" ", yields, exports) // the hash of what comes out is made of it
	if was != nil && was.sign == v.sign {
		v.out = was.out
		return v
	}
	clipped := *svc
	clipped.Created, clipped.ExportTo, clipped.Yields = created, exports, yields
	clipped.Hash = hashAs(svc.Hash, v.sign)
	v.out = []*Service{&clipped}
	return v
}

// foreign is what is told of an object that names the host of another.
func foreign(m *Meta, h Hostname, r *rival) Conflict {
	return Conflict{
		Key: m.Key, Host: h, Kept: r.origin, Dropped: m.Origin, Foreign: true,
		Reason: fmt.Sprintf("the host %q belongs to %s: this object, whose source is bound to namespaces, applies to it only for clients in the namespace %s; "+
			"if the host belongs to this source, set --config-hosts", h, r, m.Namespace),
	}
}

// ownOnly is who sees an object that only its own namespace may see: nobody, if
// that did not see it before.
func ownOnly(exports Exports, defaults []string, own string) Exports {
	if exportedTo(exports, defaults, own, own) {
		return Exports{own}
	}
	return Exports{"~"}
}

// hashAs is the hash of content that something was made of; unknown stays
// unknown.
func hashAs(h Hash, as string) Hash {
	if h.IsZero() {
		return h
	}
	return sha256.Sum256(append(h[:], as...))
}

// tell lists what is to be told of all objects.
func (w *clipper) tell() {
	w.conflicts = nil
	for _, v := range w.clipping.services.all {
		w.conflicts = append(w.conflicts, v.conflicts...)
	}
	for _, v := range w.clipping.routes.all {
		w.conflicts = append(w.conflicts, v.conflicts...)
	}
	slices.SortFunc(w.conflicts, compareForeign)
	w.conflicts = slices.Compact(w.conflicts) // hosts of one object share its addresses
}

// assemble makes the fragments that count.
func (w *clipper) assemble() {
	w.out = make([]*Fragment, len(w.inputs))
	for i, f := range w.inputs {
		if w.out[i] = f; f == nil || w.owners.bindings[i] == nil {
			continue
		}
		var before *Fragment
		if len(w.prev.out) > i {
			before = w.prev.out[i]
		}
		next := *f
		next.Services = counted(before.services(), f.Services, w.patches[i].services, &w.clipping.services, compareServiceKeys)
		next.VirtualServices = counted(before.virtualServices(), f.VirtualServices, w.patches[i].routes, &w.clipping.routes, compareKeys)
		if !sameSlice(next.Services, f.Services) || !sameSlice(next.VirtualServices, f.VirtualServices) {
			w.out[i] = &next
		}
	}
}

// counted is what counts of a list: the list itself where that is all of it as it
// is.
func counted[T object](before, list []T, patches []Delta[T], decisions *shelves[T, *decision[T]], order func(a, b T) int) []T {
	if decisions.size == 0 {
		return list
	}
	if len(before) > 0 {
		if out, ok := patch(before, patches, order); ok {
			return out
		}
	}
	out := make([]T, 0, len(list))
	asItIs := true
	for _, x := range list {
		v := decisions.get(x)
		asItIs = asItIs && v == nil
		out = append(out, outcome(x, v)...)
	}
	if asItIs {
		return list
	}
	return sorted(out, order)
}
