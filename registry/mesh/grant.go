package mesh

import "slices"

// grant is the owner to be put on record for a host that is no wildcard: the
// namespace that it is of by no pattern, as nobody who comes before declares it.
func (o *owners) grant(h Hostname) (Owner, bool) {
	if port, is := portOf(h); is {
		return o.grantPort(port)
	}
	if ns, port, is := httpPortOf(h); is {
		return Owner{Namespace: ns}, o.hasHTTP(ns, port)
	}
	switch {
	case isAddress(h):
		return o.grantAddress(h)
	case h.IsWildcard():
		return o.grantWildcard(h)
	}
	declared := false
	for svc := range o.declared(h, true) {
		if svc.Hostname.canonical() == h {
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
		declared = declared || len(services) > 0 || o.claims[i].services.hasAbove(h)
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
	if was, known := o.record.Of(h); known && was.Namespace == out.Namespace {
		out.Routes = was.Routes // a service that is gone for a moment is no chance for another
	}
	return out, out.Namespace != "" && !declared
}

// claimed reports whether a namespace still names a host.
func (o *owners) claimed(h Hostname, namespace string) bool {
	ns, http, isHTTP := httpPortOf(h)
	for i, b := range o.bindings {
		if b == nil {
			if slices.ContainsFunc(o.claims[i].workloads.get(h), func(w *Workload) bool { return w.Namespace == namespace && isInstance(w) }) {
				return true
			}
			continue
		}
		if !b.has(namespace) {
			continue
		}
		if isHTTP && slices.ContainsFunc(o.claims[i].http.get(http), func(svc *Service) bool { return svc.Namespace == ns }) {
			return true
		}
		if c := &o.claims[i]; len(c.services.get(h))+len(c.routes.get(h)) > 0 {
			return true
		}
		if port, is := portOf(h); is && len(o.claims[i].opaque.get(port)) > 0 {
			return true
		}
		if c := &o.claims[i]; len(c.addresses.get(h))+len(c.workloads.get(h))+len(c.inline.get(h)) > 0 {
			return true
		}
	}
	return false
}

// grantWildcard is the owner to be put on record for a wildcard that keeps what is
// below it: who has it for other namespaces, by no pattern.
func (o *owners) grantWildcard(h Hostname) (Owner, bool) {
	if tooWide(h) {
		return Owner{}, false
	}
	was, known := o.record.Of(h)
	first := ""
	for i, b := range o.bindings {
		if b == nil || b.covers(h) {
			continue
		}
		for _, svc := range o.claims[i].services.get(h) {
			switch {
			case o.service(i, svc) != nil:
			case known && svc.Namespace == was.Namespace:
				return was, true
			case first == "" || svc.Namespace < first:
				first = svc.Namespace
			}
		}
	}
	return Owner{Namespace: first}, first != "" && !known
}
