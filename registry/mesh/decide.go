package mesh

import "slices"

// decide decides again for objects with names that changed, or that overlap with one that
// did.
func (w *restricter) decide() {
	w.owners.cache = newDecisionCache()
	defer func() { w.owners.cache = nil }()
	w.patches = make([]patches, len(w.inputs))
	told := w.decideServices()
	told = w.decideRoutes() || told
	if told {
		w.collectConflicts()
	}
}

// decideServices reports whether there is, or was, a conflict.
func (w *restricter) decideServices() bool {
	deltas := make([][]Delta[*Service], len(w.inputs))
	for i, b := range w.owners.bindings {
		if b != nil {
			c := &w.owners.claims[i]
			deltas[i] = withReconsidered(w.services[i], overlappingObjects(w.hosts, &c.services, &c.addresses, &c.short))
		}
	}
	// A service that others do not see owns no port. So if that changed, it affects
	// the services at its ports.
	for i, list := range deltas {
		for _, d := range list {
			was := w.restrictions.services.get(d.Old)
			if d.Old == d.New && (was != nil && was.unseen) != w.owners.isUnseen(i, d.New) {
				w.markPortsOf(d.New)
			}
		}
	}
	services, told := w.restrictions.services.edit(), false
	for i, b := range w.owners.bindings {
		if b == nil {
			continue
		}
		there := map[*Service]bool{}
		w.atPorts(&w.owners.claims[i], there)
		for _, d := range withReconsidered(deltas[i], there) {
			was := services.get(d.New)
			told = redecide(services, &w.patches[i].services, d, func(svc *Service, was *decision[*Service]) *decision[*Service] {
				return w.service(i, svc, was)
			}) || told
			if d.Old == d.New && d.New.Hostname.IsWildcard() && !sameConflicts(was, services.get(d.New)) {
				w.markHosts(w.serviceHosts(d.New)) // routes for any host below may depend on it
			}
		}
	}
	w.restrictions.services = services.persistentMap
	return told
}

func sameConflicts(a, b *decision[*Service]) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.Equal(a.conflicts, b.conflicts)
}

// decideRoutes is decideServices for VirtualServices.
func (w *restricter) decideRoutes() bool {
	routes, told := w.restrictions.routes.edit(), false
	for i, b := range w.owners.bindings {
		if b == nil {
			continue
		}
		c := &w.owners.claims[i]
		routing := overlappingObjects(w.hosts, &c.routes, &c.gateways, &c.subnets)
		for k := range w.keys {
			for _, vs := range c.written.get(k) {
				routing[vs] = true
			}
		}
		for _, d := range withReconsidered(w.routes[i], routing) {
			told = redecide(routes, &w.patches[i].routes, d, func(vs *VirtualService, was *decision[*VirtualService]) *decision[*VirtualService] {
				return w.virtualService(i, vs, was)
			}) || told
		}
	}
	w.restrictions.routes = routes.persistentMap
	return told
}
