package mesh

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"time"
)

// restrictions is what a snapshot knows of sources that are bound to namespaces. It is
// empty if there are none.
type restrictions struct {
	// inputs are the fragments of the sources, and out are those after restriction.
	inputs, out []*Fragment
	// strictlySorted says that no list of inputs has an object twice: then the next inputs
	// can be compared with them.
	strictlySorted bool
	owners         owners
	exports        [2][]string // defaults for services and for VirtualServices
	// services and routes are the decisions for objects that differ from what their source
	// has.
	services  persistentMap[*Service, *decision[*Service]]
	routes    persistentMap[*VirtualService, *decision[*VirtualService]]
	conflicts []Conflict
	rankings  rankings
	rules     tenantRules
	deputies  deputies
}

// decision is the result for one object. out depends on sign and the object alone.
type decision[T object] struct {
	sign      string
	out       []T
	conflicts []Conflict
	unseen    bool // no other namespace sees it, see [owners.isUnseen]
}

// newestDate is the creation date of objects that rank behind all others.
func newestDate() time.Time { return time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC) }

// restrict applies the bindings of sources to their fragments. Unchanged objects and lists
// stay the same pointers. Fragments of unbound sources come first: if two sources have an
// object of one Key, theirs is used.
func (s *Snapshot) restrict(prev *Snapshot, in Input) []*Fragment {
	if !slices.ContainsFunc(in.Bindings, func(b *Binding) bool { return b != nil }) {
		return in.Fragments
	}
	bindings := make([]*Binding, len(in.Fragments))
	copy(bindings, in.Bindings)
	p, c := prev.tables.restrictions, &s.tables.restrictions
	spec := s.MeshConfig.Spec
	*c = restrictions{
		inputs:   in.Fragments,
		exports:  [2][]string{spec.GetDefaultServiceExportTo(), spec.GetDefaultVirtualServiceExportTo()},
		services: p.services, routes: p.routes, conflicts: p.conflicts,
	}
	w := &restricter{restrictions: c, prev: p}
	w.owners = owners{bindings: bindings, grants: in.Grants, given: p.owners.given, defaults: c.exports[0]}
	sameBindings := len(p.inputs) == len(in.Fragments) && slices.Equal(p.owners.bindings, bindings)
	if !sameBindings || !sameGateways(p.inputs, in.Fragments, bindings) {
		w.owners.given = givenBy(in.Fragments, bindings)
	}
	if !sameBindings || in.Grants != p.owners.grants || !w.owners.given.equal(&p.owners.given) ||
		!slices.Equal(p.exports[0], c.exports[0]) || !slices.Equal(p.exports[1], c.exports[1]) || !w.compare() {
		w.reset()
	}
	w.indexClaims()
	w.decide()
	w.assemble()
	if !slices.Equal(p.owners.bindings, bindings) {
		p.rankings, p.rules, p.deputies = rankings{}, tenantRules{}, deputies{}
	}
	c.rankings = p.rankings.rank(in.Fragments, c.out, bindings)
	c.rules = p.rules.next(c.out, bindings, spec.GetDefaultDestinationRuleExportTo())
	c.deputies = p.deputies.next(c.out, bindings, c.exports)
	out := slices.Clone(c.out) // the next restriction begins with what this one made of each object
	c.rules.put(out, bindings)
	c.deputies.put(out, bindings)
	return boundLast(out, bindings)
}

// restricter makes restrictions from the previous ones.
type restricter struct {
	*restrictions
	prev      restrictions
	services  [][]Delta[*Service] // by source
	routes    [][]Delta[*VirtualService]
	workloads [][]Delta[*Workload]
	hosts     map[Hostname]bool // to be decided again, addresses included
	keys      map[Key]bool      // of VirtualServices that were added or removed
	ports     map[uint32]bool   // at which services changed, and whether others than HTTP
	patches   []patches
}

// patches is how the restricted fragment of a source changes.
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

// compare finds what differs in the fragments. It returns false if that is not possible.
func (w *restricter) compare() bool {
	if !w.prev.strictlySorted {
		return false
	}
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
	w.strictlySorted = true
	return true
}

// reset treats everything as changed.
func (w *restricter) reset() {
	w.prev = restrictions{inputs: make([]*Fragment, len(w.inputs))}
	w.restrictions.services, w.restrictions.routes, w.conflicts = w.prev.services, w.prev.routes, nil
	w.hosts, w.services, w.routes, w.workloads = map[Hostname]bool{}, nil, nil, nil
	w.strictlySorted = true
	for _, f := range w.inputs {
		w.strictlySorted = w.strictlySorted && strictlySorted(f.services(), compareServiceKeys) &&
			strictlySorted(f.virtualServices(), compareKeys) && strictlySorted(f.workloads(), compareKeys)
		w.services, w.routes = append(w.services, added(f.services())), append(w.routes, addedAll(f.virtualServices()))
		w.workloads = append(w.workloads, addedAll(f.workloads()))
	}
}

func addedAll[T object](list []T) []Delta[T] {
	out := make([]Delta[T], len(list))
	for i, x := range list {
		out[i].New = x
	}
	return out
}

func (w *restricter) markHosts(list []Hostname) {
	for _, h := range list {
		w.hosts[h] = true
	}
}

// indexClaims indexes the objects of each source by the names that they claim, and marks
// names that changed.
func (w *restricter) indexClaims() {
	w.owners.claims = make([]claims, len(w.inputs))
	w.keys, w.ports = map[Key]bool{}, map[uint32]bool{}
	for i := range w.inputs {
		var was claims
		if len(w.prev.owners.claims) > i {
			was = w.prev.owners.claims[i]
		}
		// Endpoints of bound sources have no address to themselves.
		inlineOf, workloadsOf := w.inlineNames, w.workloadNames
		if w.owners.bindings[i] != nil {
			inlineOf, workloadsOf = func(*Service) []Hostname { return nil }, func(*Workload) []Hostname { return nil }
		}
		shortOf := func(*Service) []Hostname { return nil }
		if w.owners.bindings[i] != nil {
			shortOf = ownShortForms
		}
		for _, d := range w.services[i] {
			w.markHosts(w.serviceHosts(d.Old))
			w.markHosts(w.serviceHosts(d.New))
			w.markHosts(w.privateNames(d.Old))
			w.markHosts(w.privateNames(d.New))
			w.markHosts(inlineOf(d.Old))
			w.markHosts(inlineOf(d.New))
		}
		for _, d := range w.workloads[i] {
			if !sameClaims(d.Old, d.New) {
				w.markHosts(workloadsOf(d.Old))
				w.markHosts(workloadsOf(d.New))
			}
		}
		w.noteKeys(w.routes[i])
		w.markPorts(w.services[i])
		for _, d := range w.routes[i] {
			w.markHosts(w.routeHosts(d.Old))
			w.markHosts(w.routeHosts(d.New))
			w.markHosts(w.gatewayHosts(d.Old))
			w.markHosts(w.gatewayHosts(d.New))
		}
		w.owners.claims[i] = claims{
			services:  was.services.updated(w.services[i], CompareServices, w.serviceHosts),
			written:   indexed(&was.written, w.routes[i], compareKeys, keyOf),
			routes:    was.routes.updated(w.routes[i], compareKeys, w.routeHosts),
			gateways:  was.gateways.updated(w.routes[i], compareKeys, w.gatewayHosts),
			addresses: was.addresses.updated(w.services[i], CompareServices, w.addressNames),
			subnets:   was.subnets.updated(w.routes[i], compareKeys, w.subnetNames),
			workloads: was.workloads.updated(w.workloads[i], compareKeys, workloadsOf),
			inline:    was.inline.updated(w.services[i], CompareServices, inlineOf),
			opaque:    indexed(&was.opaque, w.services[i], CompareServices, w.opaquePorts),
			http:      indexed(&was.http, w.services[i], CompareServices, w.httpPorts),
			aliases:   indexed(&was.aliases, w.services[i], CompareServices, w.aliases(i)),
			short:     was.short.updated(w.services[i], CompareServices, shortOf),
			private:   was.private.updated(w.services[i], CompareServices, w.privateNames),
		}
	}
	w.markAliases()
}

// sameClaims reports whether two workloads have the same claims to addresses, and in the same
// place: most changes of workloads are of their health or labels.
func sameClaims(a, b *Workload) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Address == b.Address && isInstance(a) == isInstance(b) &&
		(a.Origin == b.Origin || a.Origin != nil && b.Origin != nil && *a.Origin == *b.Origin)
}

// serviceHosts is the host that a service declares for other namespaces; none if only its
// own namespace sees it.
func (w *restricter) serviceHosts(svc *Service) []Hostname {
	if svc == nil || onlyOwn(svc.ExportTo, w.exports[0], svc.Namespace) {
		return nil
	}
	return []Hostname{svc.Hostname.canonical()}
}

// routeHosts are the hosts for which a VirtualService routes requests of sidecars
// in other namespaces.
func (w *restricter) routeHosts(vs *VirtualService) []Hostname {
	if vs == nil || onlyOwn(vs.ExportTo, w.exports[1], vs.Namespace) {
		return nil
	}
	if !routesSidecars(vs) {
		return nil
	}
	return routedNames(vs)
}

// gatewayHosts are the hosts that a VirtualService routes at gateways alone, if one of these may be in
// another namespace.
func (w *restricter) gatewayHosts(vs *VirtualService) []Hostname {
	if vs == nil || routesSidecars(vs) || onlyOwn(vs.ExportTo, w.exports[1], vs.Namespace) {
		return nil
	}
	return routedNames(vs)
}

// onlyOwn reports whether nobody but an object's own namespace sees it.
func onlyOwn(exports Exports, defaults []string, own string) bool {
	to := audienceOf(exports, defaults, own)
	return !to.all && !slices.ContainsFunc(to.namespaces, func(ns string) bool { return ns != own })
}

// overlappingObjects are the objects with a name that overlaps with one of the hosts.
func overlappingObjects[T object](hosts map[Hostname]bool, indexes ...*nameIndex[T]) map[T]bool {
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

// withReconsidered are the changes of a source, and its other objects that have to be
// decided again.
func withReconsidered[T object](deltas []Delta[T], objects map[T]bool) []Delta[T] {
	out := slices.Clone(deltas)
	for _, d := range deltas {
		delete(objects, d.New)
	}
	for x := range objects {
		out = append(out, Delta[T]{Old: x, New: x})
	}
	return out
}

// redecide decides for one object again. It reports whether there is, or was, a conflict
// about it.
func redecide[T object](decisions *mapEditor[T, *decision[T]], patches *[]Delta[T], d Delta[T], decide func(T, *decision[T]) *decision[T]) bool {
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
		decisions.delete(d.Old)
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

// outcome is what an object was replaced by.
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

// service decides for a service of a bound source; nil means that it is not restricted.
func (w *restricter) service(source int, svc *Service, was *decision[*Service]) *decision[*Service] {
	lost := w.owners.lostNames(source, svc)
	if len(w.serviceHosts(svc)) == 0 {
		if lost == 0 {
			return nil
		}
		v := &decision[*Service]{sign: fmt.Sprint("short ", lost)}
		if was != nil && was.sign == v.sign {
			v.out = was.out
		} else {
			v.out = []*Service{withLostNames(svc, lost)}
		}
		return v
	}
	v, created := &decision[*Service]{sign: "service"}, newestDate()
	exports := ownOnly(svc.ExportTo, w.exports[0], svc.Namespace)
	if r := w.owners.service(source, svc); r != nil {
		v.unseen, v.conflicts = true, []Conflict{foreignHostConflict(&svc.Meta, svc.Hostname, r, w.owners.advise(source, svc.Hostname.canonical(), svc.Namespace, true))}
	} else if a, r := w.owners.serviceAddress(source, svc); r != nil {
		v.unseen, v.conflicts = true, []Conflict{foreignAddressConflict(&svc.Meta, a, r, w.owners.advise(source, a, svc.Namespace, true))}
	} else if private := w.owners.privateAddresses(source, svc.Namespace, addressNames(svc)); len(private) > 0 {
		without := namespacesOf(private)
		v.conflicts = []Conflict{privateAddressConflict(&svc.Meta, addressNames(svc)[0], private[0], w.owners.advise(source, addressNames(svc)[0], svc.Namespace, true))}
		v.sign = fmt.Sprintf("service without %q", without)
		exports, created = exportsWithout(svc.ExportTo, w.exports[0], svc.Namespace, without), svc.Created
		v.unseen = onlyOwn(exports, w.exports[0], svc.Namespace)
	} else {
		exports, created = svc.ExportTo, svc.Created
	}
	var yields []uint32
	if v.sign != "service" || len(v.conflicts) == 0 {
		yields = w.owners.yields(source, svc)
		v.conflicts = append(v.conflicts, yieldConflicts(svc, yields)...)
	}
	if len(v.conflicts)+len(yields) == 0 && lost == 0 {
		return nil
	}
	v.sign += fmt.Sprint(" ", yields, exports, lost) // the hash of what comes out is made of it
	if was != nil && was.sign == v.sign {
		v.out = was.out
		return v
	}
	restricted := *svc
	restricted.Created, restricted.ExportTo, restricted.Yields, restricted.LostNames = created, exports, yields, lost
	restricted.Hash = hashAs(svc.Hash, v.sign)
	v.out = []*Service{&restricted}
	return v
}

// foreignHostConflict is the conflict of an object that names the host of another source.
func foreignHostConflict(m *Meta, h Hostname, r *rival, a Advice) Conflict {
	if len(r.elsewhere) > 0 {
		return Conflict{
			Key: m.Key, Host: h, Kept: r.origin, Dropped: m.Origin, Foreign: true,
			Reason: fmt.Sprintf("the host %q is given to the namespace %s at %s; at the other Gateways it belongs to %s, and this object, whose source is bound to namespaces, applies to it there only for "+
				"gateways in the namespace %s; %s", h, m.Namespace, listGateways(r.elsewhere), r, m.Namespace, a.Text),
		}
	}
	return Conflict{
		Key: m.Key, Host: h, Kept: r.origin, Dropped: m.Origin, Foreign: true,
		Reason: fmt.Sprintf("the host %q belongs to %s: this object, whose source is bound to namespaces, applies to it only for clients and gateways in the namespace %s; %s",
			h, r, m.Namespace, a.Text),
	}
}

// ownOnly are the exports of an object that is restricted to its own namespace; none if
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

// collectConflicts collects the conflicts of all objects.
func (w *restricter) collectConflicts() {
	w.conflicts = nil
	for _, v := range w.restrictions.services.all {
		w.conflicts = append(w.conflicts, v.conflicts...)
	}
	for _, v := range w.restrictions.routes.all {
		w.conflicts = append(w.conflicts, v.conflicts...)
	}
	slices.SortFunc(w.conflicts, compareConflicts)
	w.conflicts = slices.Compact(w.conflicts) // hosts of one object share its addresses
}

// assemble makes the restricted fragments.
func (w *restricter) assemble() {
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
		next.Services = effective(before.services(), f.Services, w.patches[i].services, &w.restrictions.services, compareServiceKeys)
		next.VirtualServices = effective(before.virtualServices(), f.VirtualServices, w.patches[i].routes, &w.restrictions.routes, compareKeys)
		if !sameSlice(next.Services, f.Services) || !sameSlice(next.VirtualServices, f.VirtualServices) {
			w.out[i] = &next
		}
	}
}

// effective is a list after restriction; the list itself if nothing in it is restricted.
func effective[T object](before, list []T, patches []Delta[T], decisions *persistentMap[T, *decision[T]], order func(a, b T) int) []T {
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
