package mesh

import "slices"

// decide decides anew for what names a host of which anything changed, or one
// that overlaps with it.
func (w *clipper) decide() {
	w.owners.answers = newAnswers()
	defer func() { w.owners.answers = nil }()
	decided := map[Hostname]bool{}
	w.patches = make([]patches, len(w.inputs))
	told := w.decideServices(decided)
	told = w.decideRoutes(decided) || told
	for h := range w.hosts {
		noteHosts(decided, []Hostname{h})
		w.noteEndpoints(decided, h)
	}
	for port := range w.ports {
		decided[portName(port)] = true
	}
	for h := range decided {
		w.decided = append(w.decided, h)
	}
	slices.Sort(w.decided)
	if told {
		w.tell()
	}
}

// decideServices reports whether there is, or was, something to be told.
func (w *clipper) decideServices(decided map[Hostname]bool) bool {
	deltas := make([][]Delta[*Service], len(w.inputs))
	for i, b := range w.owners.bindings {
		if b != nil {
			c := &w.owners.claims[i]
			deltas[i] = withConcerned(w.services[i], concerned(w.hosts, &c.services, &c.addresses))
		}
	}
	// What others do not see holds no port: who is seen again, or no more, concerns
	// those at its ports.
	for i, list := range deltas {
		for _, d := range list {
			was := w.clipping.services.get(d.Old)
			if d.Old == d.New && (was != nil && was.clipped) != w.owners.clipped(i, d.New) {
				w.touchPortsOf(d.New)
			}
		}
	}
	w.touchHTTP()
	services, told := w.clipping.services.change(), false
	for i, b := range w.owners.bindings {
		if b == nil {
			continue
		}
		there := map[*Service]bool{}
		w.atPorts(&w.owners.claims[i], there)
		for _, d := range deltas[i] {
			delete(there, d.New)
		}
		for _, d := range withConcerned(deltas[i], there) {
			told = redecide(services, &w.patches[i].services, d, func(svc *Service, was *decision[*Service]) *decision[*Service] {
				return w.service(i, svc, was)
			}) || told
			noteHosts(decided, w.serviceHosts(newest(d)))
			noteHosts(decided, w.addressNames(newest(d)))
		}
	}
	w.clipping.services = services.shelves
	return told
}

// decideRoutes is decideServices for VirtualServices.
func (w *clipper) decideRoutes(decided map[Hostname]bool) bool {
	routes, told := w.clipping.routes.change(), false
	for i, b := range w.owners.bindings {
		if b == nil {
			continue
		}
		c := &w.owners.claims[i]
		routing := concerned(w.hosts, &c.routes, &c.subnets)
		for k := range w.keys {
			for _, vs := range c.written.get(k) {
				routing[vs] = true
			}
		}
		for _, d := range withConcerned(w.routes[i], routing) {
			told = redecide(routes, &w.patches[i].routes, d, func(vs *VirtualService, was *decision[*VirtualService]) *decision[*VirtualService] {
				return w.virtualService(i, vs, was)
			}) || told
			noteHosts(decided, w.routeHosts(newest(d)))
		}
	}
	w.clipping.routes = routes.shelves
	return told
}
