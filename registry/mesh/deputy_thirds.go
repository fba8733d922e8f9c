package mesh

import (
	"slices"
	"strings"
)

// boundService is a service, and the source that has it; nil if that is bound to no namespace.
type boundService struct {
	*Service
	source *Binding
}

// hostServices are the services with a host. Gateways differ only if their namespaces are among named, which
// is sorted: these see more or fewer of the services.
type hostServices struct {
	list  []boundService
	named []string
}

// firstSources are the sources whose objects are in force, by Key; of all objects, or of those with some Keys.
func firstSources[T object](in [][]T, bindings []*Binding, of map[Key]bool) map[Key]int {
	out := map[Key]int{}
	for _, bound := range []bool{false, true} { // in order of precedence
		for i, list := range in {
			if (bindings[i] != nil) != bound {
				continue
			}
			for _, x := range list {
				k := x.meta().Key
				if _, known := out[k]; !known && (of == nil || of[k]) {
					out[k] = i
				}
			}
		}
	}
	return out
}

// servicesOn are the services with some hosts that are in force, or would be if no namespace saw another one with the host.
func servicesOn(hosts map[Hostname]bool, services [][]*Service, bindings []*Binding, defaults []string) map[Hostname]*hostServices {
	out := map[Hostname]*hostServices{}
	if len(hosts) == 0 {
		return out
	}
	on, keys := make([][]*Service, len(services)), map[Key]bool{}
	for i, list := range services {
		for _, svc := range list {
			if hosts[svc.Hostname.canonical()] {
				on[i], keys[svc.Key] = append(on[i], svc), true
			}
		}
	}
	first := firstSources(services, bindings, keys)
	for i, list := range on {
		for _, svc := range list {
			if first[svc.Key] != i {
				continue
			}
			h := svc.Hostname.canonical()
			if out[h] == nil {
				out[h] = &hostServices{named: slices.Clone(defaults)}
			}
			out[h].list = append(out[h].list, boundService{svc, bindings[i]})
			out[h].named = append(out[h].named, svc.Namespace)
			for _, e := range svc.ExportTo {
				out[h].named = append(out[h].named, strings.TrimPrefix(e, "!"))
			}
		}
	}
	for _, x := range out {
		slices.Sort(x.named)
		x.named = slices.Compact(x.named)
	}
	return out
}

// differing are the namespaces among those of gateways that are named, after "" for all others, if there are any.
// Both lists are sorted. It takes as long as the shorter one.
func differing(gateways, named []string) []string {
	var out []string
	for _, g := range gateways { // ends after at most one more than are named
		if _, known := slices.BinarySearch(named, g); !known {
			out = append(out, "")
			break
		}
	}
	few, many := gateways, named
	if len(few) > len(many) {
		few, many = many, few
	}
	for _, x := range few {
		if _, found := slices.BinarySearch(many, x); found && x != "" {
			out = append(out, x)
		}
	}
	return out
}

// thirds finds services of third tenants for the routes of one source. Each question is asked many times.
type thirds struct {
	b        *Binding
	found    map[Hostname]*hostServices
	defaults []string
	known    map[thirdQuestion]*Service
	included map[thirdQuestion]*Service   // what delegates lead to
	named    map[*VirtualService][]string // the named namespaces of all that a delegate leads to
}

// thirdQuestion is a destination, or a delegate, of a route of a namespace at gateways of another one.
type thirdQuestion struct {
	host               Hostname
	delegate           *VirtualService
	namespace, gateway string
}

// at is the tenant's service that a route leads to although nobody has said that it may: of no
// unbound source, of no catalog, of another namespace, and no written exportTo names the namespace of the
// route; nil if there is none. A service that the gateways do not see makes no difference: a tenant can declare
// any host for its own namespace.
func (t *thirds) at(host, namespace string, gateways []string) *Service {
	on := t.found[Hostname(host).canonical()]
	if on == nil {
		return nil
	}
	for _, gateway := range differing(gateways, on.named) {
		if svc := t.ask(host, namespace, gateway); svc != nil {
			return svc
		}
	}
	return nil
}

// ask is as at, for gateways of one namespace; "" for one that no service names.
func (t *thirds) ask(host, namespace, gateway string) *Service {
	q := thirdQuestion{host: Hostname(host).canonical(), namespace: namespace, gateway: gateway}
	svc, known := t.known[q]
	if !known {
		svc = t.find(q)
		t.known[q] = svc
	}
	return svc
}

func (t *thirds) find(q thirdQuestion) *Service {
	var out *Service
	seen := func(svc *Service) bool { return exportedTo(svc.ExportTo, t.defaults, svc.Namespace, q.gateway) }
	list := t.found[q.host].list
	for _, svc := range list {
		switch {
		case !seen(svc.Service):
		case svc.Catalog && slices.ContainsFunc(list, func(o boundService) bool { return !o.Catalog && o.Hostname == svc.Hostname && seen(o.Service) }):
			// it is not there where a declared one is seen: see Shadowed
		case svc.source == nil || t.b.has(svc.Namespace) || slices.Contains(svc.ExportTo, q.namespace):
			return nil
		case out == nil || svc.Compare(out.Key) < 0:
			out = svc.Service
		}
	}
	return out
}

// within is the first such service that a delegate leads to.
func (t *thirds) within(delegate *VirtualService, namespace string, gateways []string) *Service {
	if delegate == nil {
		return nil
	}
	for _, gateway := range differing(gateways, t.namedBy(delegate)) {
		q := thirdQuestion{delegate: delegate, namespace: namespace, gateway: gateway}
		svc, known := t.included[q]
		if !known {
			for _, to := range destinationsOf(delegate.Spec) {
				if svc = t.at(to.GetHost(), namespace, []string{gateway}); svc != nil {
					break
				}
			}
			t.included[q] = svc
		}
		if svc != nil {
			return svc
		}
	}
	return nil
}

// namedBy are the named namespaces of all that a delegate leads to.
func (t *thirds) namedBy(delegate *VirtualService) []string {
	out, known := t.named[delegate]
	if known {
		return out
	}
	read := map[Hostname]bool{}
	for _, to := range destinationsOf(delegate.Spec) {
		if h := Hostname(to.GetHost()).canonical(); !read[h] && t.found[h] != nil {
			read[h] = true
			out = append(out, t.found[h].named...)
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	t.named[delegate] = out
	return out
}
