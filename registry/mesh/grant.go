package mesh

// grant is the owner to be put on record for a host that is no wildcard: the
// namespace that it is of by no pattern, as nobody who comes before declares it.
func (o *owners) grant(h Hostname) (Owner, bool) {
	declared := false
	for svc := range o.declared(h, true) {
		if svc.Hostname.plain() == h {
			return Owner{}, false
		}
		declared = true
	}
	owner, known := o.ownerOf(h)
	if !known {
		return Owner{}, false
	}
	var out Owner
	for i, b := range o.bindings {
		if b == nil {
			continue
		}
		services := o.claims[i].services.get(h)
		declared = declared || len(services) > 0 || len(hostsOf(&o.claims[i].wideServices, h.Overlaps)) > 0
		if b.covers(h) {
			continue
		}
		for _, svc := range services {
			if o.service(i, svc) == nil {
				return Owner{Namespace: owner.Namespace}, true
			}
		}
		for _, vs := range o.claims[i].routes.get(h) {
			if o.routes(i, vs, h) == nil && b.has(owner.Namespace) {
				out = Owner{Namespace: owner.Namespace, Routes: true}
			}
		}
	}
	return out, out.Namespace != "" && !declared
}

// claims reports whether a namespace still names a host.
func (o *owners) claimed(h Hostname, namespace string) bool {
	for i, b := range o.bindings {
		if b == nil || !b.has(namespace) {
			continue
		}
		if c := &o.claims[i]; len(c.services.get(h))+len(c.routes.get(h)) > 0 {
			return true
		}
	}
	return false
}
