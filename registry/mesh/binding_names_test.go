package mesh

import (
	"slices"
	"strings"
	"testing"
)

func sourceOf(m *Meta) int { return int(m.Origin.Source[0] - '0') }

// servicesForOthers are the services, as sources write them, that others than their namespace are to see.
func (l *life) servicesForOthers(yield func(source int, svc *Service) bool) {
	for i, objects := range l.objects {
		for _, x := range objects {
			if svc, is := x.(*Service); is && l.forOthers(svc) && !yield(i, svc) {
				return
			}
		}
	}
}

func (l *life) forOthers(svc *Service) bool {
	return !onlyOwn(svc.ExportTo, l.config.Spec.GetDefaultServiceExportTo(), svc.Namespace)
}

func (l *life) routesForOthers(vs *VirtualService) bool {
	return !onlyOwn(vs.ExportTo, l.config.Spec.GetDefaultVirtualServiceExportTo(), vs.Namespace)
}

// patternOfOthers reports whether a pattern of another source has something of a name.
func (w *tenants) patternOfOthers(source int, h Hostname) bool {
	for i, b := range w.bindings {
		if i != source && b != nil && slices.ContainsFunc(b.Hosts, func(p Hostname) bool { return overlapping(p, h) }) {
			return true
		}
	}
	return false
}

// checkAddresses holds addresses and ranges that others see of bound sources to the definition: they have those of their
// patterns, but for one that an unbound source declares elsewhere; and granted ones, of which nobody else has anything.
func (l *life) checkAddresses(t *testing.T, s *Snapshot) {
	t.Helper()
	for _, svc := range s.Services {
		i := sourceOf(&svc.Meta)
		if l.bindings[i] == nil || !l.forOthers(svc) {
			continue
		}
		for _, a := range addressNames(svc) {
			if whose := l.addressOfOthers(s, i, svc.Namespace, a); whose != "" {
				t.Fatalf("%s of source %d is seen by others, and its address %s is %s", svc.Key, i, a, whose)
			}
		}
	}
	for _, vs := range s.VirtualServices {
		i := sourceOf(&vs.Meta)
		b := l.bindings[i]
		if b == nil || !l.routesForOthers(vs) || !routesSidecars(vs) || len(vs.Spec.Hosts) == 0 { // without hosts it is a delegate
			continue
		}
		for _, a := range subnetNames(vs) {
			if ofControlPlane(a) && !b.covers(a) {
				t.Fatalf("%s of source %d is seen by others, and matches addresses of the control plane: %s", vs.Key, i, a)
			}
			if whose := l.addressOfOthers(s, i, vs.Namespace, a); whose != "" && !l.holdsAddress(s, i, vs.Namespace, a) {
				t.Fatalf("%s of source %d is seen by others, and its subnet %s is %s", vs.Key, i, a, whose)
			}
		}
	}
}

// addressOfOthers says whose an address is; empty if it is the source's.
func (l *life) addressOfOthers(s *Snapshot, source int, namespace string, a Hostname) string {
	b := l.bindings[source]
	mine, whose := b.covers(a), ""
	l.servicesForOthers(func(i int, svc *Service) bool {
		if l.bindings[i] != nil || svc.Namespace == namespace {
			return true
		}
		takes := func(x Hostname) bool {
			if mine {
				return x == a && !svc.Catalog
			}
			return overlapping(x, a)
		}
		if slices.ContainsFunc(addressNames(svc), takes) || !mine && slices.ContainsFunc(inlineNames(svc), takes) {
			whose = "of " + svc.String()
		}
		return whose == ""
	})
	if mine || whose != "" {
		return whose
	}
	for i, objects := range l.objects {
		for _, x := range objects {
			if m, is := x.(*Workload); is && l.bindings[i] == nil && m.Namespace != namespace && !isInstance(m) && slices.ContainsFunc(workloadNames(m), func(x Hostname) bool { return overlapping(x, a) }) {
				return "of " + m.String()
			}
		}
	}
	switch {
	case l.patternOfOthers(source, a):
		return "of another's pattern"
	case isWide(a) && ofControlPlane(a):
		return "of the control plane"
	case !l.hasTitle(s, b, a, false):
		return "nobody's"
	}
	return ""
}

// holdsAddress reports whether a service of the source, or of the namespace, has exactly an address, and is seen by others,
// or would be if none of them had such an address to itself.
func (l *life) holdsAddress(s *Snapshot, source int, namespace string, a Hostname) bool {
	holds := false
	l.servicesForOthers(func(i int, svc *Service) bool {
		if slices.Contains(addressNames(svc), a) && (svc.Namespace == namespace || i == source && l.bindings[i].has(svc.Namespace)) {
			holds = l.bindings[i] == nil || l.seen(s, svc) || l.keptAway(s, i, svc)
		}
		return !holds
	})
	return holds
}

// keptAway reports whether a service has its host and all of its addresses for others, and all whom it names have such an
// address to themselves. They do not see it then, and take it from nobody.
func (l *life) keptAway(s *Snapshot, source int, svc *Service) bool {
	h, names := svc.Hostname.canonical(), addressNames(svc)
	ofOthers := func(a Hostname) bool { return l.addressOfOthers(s, source, svc.Namespace, a) != "" }
	if l.declaredUnbound(svc.Namespace, h) || !isAddress(h) && !l.ownHost(s, source, h) || slices.ContainsFunc(names, ofOthers) {
		return false
	}
	to := audienceOf(svc.ExportTo, l.config.Spec.GetDefaultServiceExportTo(), svc.Namespace)
	return !to.all && !slices.ContainsFunc(to.namespaces, func(ns string) bool {
		return ns != svc.Namespace && (l.bindings[source].has(ns) || !l.hasToItself(ns, names))
	})
}

// hasToItself reports whether a service that a namespace alone sees has an address, or an endpoint, within some addresses.
func (l *life) hasToItself(namespace string, addresses []Hostname) bool {
	defaults := l.config.Spec.GetDefaultServiceExportTo()
	for _, objects := range l.objects {
		for _, x := range objects {
			svc, is := x.(*Service)
			if !is || svc.Namespace != namespace || l.forOthers(svc) || !exportedTo(svc.ExportTo, defaults, namespace, namespace) {
				continue
			}
			for _, a := range append(addressNames(svc), inlineNames(svc)...) {
				if slices.ContainsFunc(addresses, func(x Hostname) bool { return overlapping(x, a) }) {
					return true
				}
			}
		}
	}
	return false
}

// seen reports whether others see a service. One that another object with its key replaces counts, too.
func (l *life) seen(s *Snapshot, svc *Service) bool {
	there := false
	for _, x := range s.Services {
		if *x.Origin == *svc.Origin && x.Hostname == svc.Hostname {
			if there = true; l.forOthers(x) {
				return true
			}
		}
	}
	return !there
}

// checkRoutedNames holds to the definition what others get of a bound source's routes for names that are nobody's by a
// pattern: they are not for what an unbound source routes at gateways, nor another name of somebody else's service.
func (l *life) checkRoutedNames(t *testing.T, s *Snapshot) {
	t.Helper()
	for _, vs := range s.VirtualServices {
		i := sourceOf(&vs.Meta)
		b := l.bindings[i]
		if b == nil || !l.routesForOthers(vs) || len(vs.Spec.Hosts) == 0 {
			continue
		}
		for _, h := range routedNames(vs) {
			if b.covers(h) {
				continue
			}
			if l.patternOfOthers(i, h) {
				t.Fatalf("%s of source %d is seen by others, and %s is of another's pattern", vs.Key, i, h)
			}
			if l.ownsExactly(s, i, h) {
				continue
			}
			for _, o := range s.VirtualServices {
				if l.bindings[sourceOf(&o.Meta)] != nil || len(o.Spec.Hosts) == 0 || o.Namespace == vs.Namespace || !l.routesForOthers(o) || !routesGateways(o) || !routesGateways(vs) {
					continue
				}
				if slices.ContainsFunc(routedNames(o), func(x Hostname) bool { return x == h || h.IsWildcard() && covering(h, x) }) {
					t.Fatalf("%s of source %d is seen by others, and %s routes %s at gateways", vs.Key, i, o.Key, h)
				}
			}
			if !isAddress(h) && !l.hasTitle(s, b, h, false) {
				l.checkAlias(t, s, vs, h)
			}
		}
	}
}

// ownsExactly reports whether a source has a service for exactly a host that others see, or would see if it had no
// address of somebody else: by a title, or as the service of an unbound source in the same namespace.
func (l *life) ownsExactly(s *Snapshot, source int, h Hostname) bool {
	owns := false
	l.servicesForOthers(func(i int, svc *Service) bool {
		owns = i == source && !h.IsWildcard() && svc.Hostname.canonical() == h &&
			(l.seen(s, svc) || l.hasTitle(s, l.bindings[i], h, false) || l.declaredUnbound(svc.Namespace, h))
		return !owns
	})
	return owns
}

// declaredUnbound reports whether an unbound source has a service for exactly a host in a namespace.
func (l *life) declaredUnbound(namespace string, h Hostname) bool {
	found := false
	l.servicesForOthers(func(i int, svc *Service) bool {
		found = l.bindings[i] == nil && svc.Namespace == namespace && svc.Hostname.canonical() == h
		return !found
	})
	return found
}

// checkAlias wants no routes for a short form of another namespace's service.
func (l *life) checkAlias(t *testing.T, s *Snapshot, vs *VirtualService, h Hostname) {
	t.Helper()
	var other *Service
	for _, svc := range s.Services {
		i := sourceOf(&svc.Meta)
		name, namespace, ok := shortForms(svc.Hostname)
		if !ok || !l.forOthers(svc) || l.bindings[i] != nil && (svc.LostNames != 0 || string(namespace) != string(name)+"."+svc.Namespace) {
			continue
		}
		if h != name && h != namespace && h != namespace+".svc" {
			continue
		}
		if svc.Namespace == vs.Namespace || l.bindings[i] != nil && l.bindings[sourceOf(&vs.Meta)].has(svc.Namespace) {
			return
		}
		other = svc
	}
	l.servicesForOthers(func(i int, svc *Service) bool { // also one that the snapshot lacks, as a file replaces the catalog's
		name, namespace, ok := shortForms(svc.Hostname)
		if !ok || h != name && h != namespace && h != namespace+".svc" {
			return true
		}
		// One of a namespace of the source has its name also if others do not see it, because of its address.
		own := l.bindings[i] != nil && l.bindings[sourceOf(&vs.Meta)].has(svc.Namespace) && namespace == name+Hostname("."+svc.Namespace)
		if l.bindings[i] == nil && svc.Namespace == vs.Namespace || own && l.hasTitle(s, l.bindings[i], svc.Hostname.canonical(), false) {
			other = nil
		}
		return other != nil
	})
	if other != nil {
		t.Fatalf("%s is seen by others, and %s is a short form of %s (%s)", vs.Key, h, other.Hostname, other.Key)
	}
}

// checkShortNames holds the short forms of NAME.NAMESPACE.svc.DOMAIN to the definition: a bound source's service has them if
// the namespace is its own, and NAME is no wildcard and has no dot, and if nobody else has one. An unbound source's has all.
func (l *life) checkShortNames(t *testing.T, s *Snapshot) {
	t.Helper()
	for _, svc := range s.Services {
		i := sourceOf(&svc.Meta)
		head, domain, is := strings.Cut(string(svc.Hostname.canonical()), ".svc.")
		name, namespace, dotted := strings.Cut(head, ".")
		var want LostNames
		if b := l.bindings[i]; b != nil && is && dotted && domain != "" {
			if namespace != svc.Namespace || svc.Hostname.IsWildcard() || l.nameOfOthers(s, i, Hostname(name)) {
				want |= LostName
			}
			if namespace != svc.Namespace || svc.Hostname.IsWildcard() || l.nameOfOthers(s, i, Hostname(head)) || l.nameOfOthers(s, i, Hostname(head+".svc")) {
				want |= LostNamespaceName
			}
		}
		if svc.LostNames != want {
			t.Fatalf("%s of source %d, for %s, lacks short forms %d, want %d", svc.Key, i, svc.Hostname, svc.LostNames, want)
		}
	}
}

// nameOfOthers reports whether a name is given to somebody else, or declared by an unbound source for anybody.
func (l *life) nameOfOthers(s *Snapshot, source int, h Hostname) bool {
	b := l.bindings[source]
	if l.patternOfOthers(source, h) {
		return true
	}
	if given := l.titlesOf(s, h, false); len(given) > 0 && !b.covers(h) && !slices.ContainsFunc(b.Namespaces, func(ns string) bool { return given[ns] }) {
		return true
	}
	for i, objects := range l.objects {
		for _, x := range objects {
			svc, is := x.(*Service)
			if !is || l.bindings[i] != nil || svc.Hostname == "*" || !covering(svc.Hostname.canonical(), h) {
				continue
			}
			if l.forOthers(svc) || exportedTo(svc.ExportTo, l.config.Spec.GetDefaultServiceExportTo(), svc.Namespace, svc.Namespace) {
				return true
			}
		}
	}
	return false
}

// checkCredentials: proxies of other namespaces use the credentials that a bound source was given, and no others; those
// of the rule's own namespace use all.
func (l *life) checkCredentials(t *testing.T, s *Snapshot) {
	t.Helper()
	for _, r := range s.DestinationRules {
		i := sourceOf(&r.Meta)
		name := r.Spec.GetTrafficPolicy().GetTls().GetCredentialName()
		want := name
		if b := l.bindings[i]; name != "" && b != nil && !slices.Contains(b.Credentials, name) {
			want = RefusedCredential
		}
		if got := r.SpecElsewhere().GetTrafficPolicy().GetTls().GetCredentialName(); got != want {
			t.Fatalf("%s of source %d: others use the credential %q, want %q", r.Key, i, got, want)
		}
		if was, is := l.objects[i][r.Key].(*DestinationRule); !is || was.Spec != r.Spec {
			t.Fatalf("%s of source %d: its own namespace has another rule", r.Key, i)
		}
	}
}

// checkGateways wants Gateways of bound sources behind all others, and without dates where several of these sources
// have some in a namespace.
func (l *life) checkGateways(t *testing.T, s *Snapshot) {
	t.Helper()
	sources, dated := map[string]map[int]bool{}, map[string]bool{}
	for i, objects := range l.objects {
		for _, x := range objects {
			if g, is := x.(*Gateway); is && l.bindings[i] != nil {
				if sources[g.Namespace] == nil {
					sources[g.Namespace] = map[int]bool{}
				}
				sources[g.Namespace][i] = true
				dated[g.Namespace] = dated[g.Namespace] || !g.Created.IsZero()
			}
		}
	}
	for _, g := range s.Gateways {
		i := sourceOf(&g.Meta)
		was, is := l.objects[i][g.Key].(*Gateway)
		if !is || g.Tenant != (l.bindings[i] != nil) {
			t.Fatalf("%s of source %d is of a tenant: %v", g.Key, i, g.Tenant)
		}
		if ageless := g.Tenant && len(sources[g.Namespace]) > 1 && dated[g.Namespace]; !g.Created.Equal(was.Created) && !ageless || ageless && !g.Created.IsZero() {
			t.Fatalf("%s of source %d is of %s, was of %s", g.Key, i, g.Created, was.Created)
		}
	}
}
