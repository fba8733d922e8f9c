package mesh

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/metakeys"
)

// Labels of workloads that come from a catalog. The catalog source alone gives
// them: no registration can set a label with their prefix. A manifest may: a
// WorkloadEntry with LabelConsulService is one more instance of that service.
const (
	// LabelConsulPrefix begins the name of every label that is reserved for the
	// source.
	LabelConsulPrefix = metakeys.ConsulPrefix
	// LabelConsulService is the service that the workload is an instance of. A
	// workload that has it is selected only by services whose selector has it:
	// what its registration says of it in other labels cannot put it behind a
	// service that did not ask for instances of the catalog.
	LabelConsulService = metakeys.ConsulService
	// LabelConsulDatacenter is the datacenter that the instance is registered in.
	LabelConsulDatacenter = metakeys.ConsulDatacenter
	// LabelConsulNode is the name of the catalog's node that has the instance.
	LabelConsulNode = metakeys.ConsulNode
)

// ServiceSelects reports whether a service with that selector, in the workload's
// namespace, has a workload with those labels behind it. It differs from
// [Selects] for instances of a catalog only.
func ServiceSelects(selector, labels map[string]string) bool {
	if _, instance := labels[LabelConsulService]; instance {
		if _, asked := selector[LabelConsulService]; !asked {
			return false
		}
	}
	return Selects(selector, labels)
}

// catalogs is what a snapshot knows of the services of catalogs, and of declared services
// for the same hosts.
type catalogs struct {
	// derived are the services of catalogs, by host. written are the declared ones, by
	// host; they are empty if there is no catalog.
	derived, written persistentMap[Hostname, []*Service]
	// hidden are the derived services that are not in force, because every namespace that
	// would see them sees a declared one.
	hidden    persistentMap[*Service, bool]
	conflicts []Conflict
	// inForce are the services that are in force, sorted by Key.
	inForce []*Service
}

// withCatalogs decides which services of catalogs are in force: merged are all
// services, of which deltas are the changes. It returns what changed in
// catalogs.standing.
func (s *Snapshot) withCatalogs(prev *Snapshot, deltas []Delta[*Service]) []Delta[*Service] {
	p, merged := &prev.tables.catalogs, tableOf[*Service](&s.tables).merged
	c := &s.tables.catalogs
	*c = *p
	exports := prev.MeshConfig == nil || !slices.Equal(prev.MeshConfig.Spec.GetDefaultServiceExportTo(), s.MeshConfig.Spec.GetDefaultServiceExportTo())
	derived, written := splitCatalog(deltas)
	if len(derived) == 0 && p.derived.size == 0 {
		c.inForce = merged
		return deltas
	}
	if len(deltas) == 0 && !exports {
		return nil
	}
	c.derived = indexed(&p.derived, derived, CompareServices, hostOf)
	switch {
	case c.derived.size == 0:
		c.written = persistentMap[Hostname, []*Service]{}
	case p.derived.size == 0:
		_, all := splitCatalog(added(merged))
		c.written = indexed(&c.written, all, CompareServices, hostOf)
	default:
		c.written = indexed(&p.written, written, CompareServices, hostOf)
	}
	hosts := c.affectedHosts(p, deltas, exports)
	moves := c.updateHidden(p, hosts, s.MeshConfig.Spec.GetDefaultServiceExportTo())
	return c.listInForce(p, merged, append(deltasInForce(p, c, deltas), moves...))
}

func hostOf(s *Service) []Hostname { return []Hostname{s.Hostname} }

// splitCatalog separates changes of services of catalogs from those of declared ones.
func splitCatalog(deltas []Delta[*Service]) (derived, written []Delta[*Service]) {
	add := func(d Delta[*Service], svc *Service) {
		if svc.Catalog {
			derived = append(derived, d)
		} else {
			written = append(written, d)
		}
	}
	for _, d := range deltas {
		if d.Old != nil {
			add(Delta[*Service]{Old: d.Old}, d.Old)
		}
		if d.New != nil {
			add(Delta[*Service]{New: d.New}, d.New)
		}
	}
	return derived, written
}

func added(list []*Service) []Delta[*Service] {
	out := make([]Delta[*Service], len(list))
	for i, svc := range list {
		out[i].New = svc
	}
	return out
}

// affectedHosts are the hosts of catalogs for which other services may be in force now.
func (c *catalogs) affectedHosts(prev *catalogs, deltas []Delta[*Service], all bool) map[Hostname]bool {
	hosts := map[Hostname]bool{}
	note := func(h Hostname) {
		if len(c.derived.get(h))+len(prev.derived.get(h)) > 0 {
			hosts[h] = true
		}
	}
	for _, d := range deltas {
		for _, svc := range []*Service{d.Old, d.New} {
			if svc != nil {
				note(svc.Hostname)
			}
		}
	}
	if all {
		for h := range c.derived.all {
			note(h)
		}
	}
	return hosts
}

// updateHidden decides for some hosts again. It returns the resulting changes of services
// that did not change themselves.
func (c *catalogs) updateHidden(prev *catalogs, hosts map[Hostname]bool, defaults []string) []Delta[*Service] {
	if len(hosts) == 0 {
		return nil
	}
	hidden := prev.hidden.edit()
	var fresh []Conflict
	var moves []Delta[*Service]
	for host := range hosts {
		before := prev.derived.get(host)
		now := c.derived.get(host)
		for _, svc := range before {
			if prev.hidden.get(svc) && !slices.Contains(now, svc) {
				hidden.delete(svc)
			}
		}
		for _, svc := range now {
			is, conflicts := shadowed(svc, c.written.get(host), defaults)
			fresh = append(fresh, conflicts...)
			switch was := prev.hidden.get(svc); {
			case is == was:
			case is:
				hidden.put(svc, true)
			default:
				hidden.delete(svc)
			}
			if was := prev.hidden.get(svc); is != was && slices.Contains(before, svc) {
				if is {
					moves = append(moves, Delta[*Service]{Old: svc})
				} else {
					moves = append(moves, Delta[*Service]{New: svc})
				}
			}
		}
	}
	c.hidden = hidden.persistentMap
	among := func(x Conflict) bool { return hosts[x.Host] }
	if len(fresh) > 0 || slices.ContainsFunc(prev.conflicts, among) {
		c.conflicts = append(slices.DeleteFunc(slices.Clone(prev.conflicts), among), fresh...)
	}
	return moves
}

// deltasInForce are changes of services as far as they are, or were, in force.
func deltasInForce(prev, next *catalogs, deltas []Delta[*Service]) []Delta[*Service] {
	out := make([]Delta[*Service], 0, len(deltas))
	for _, d := range deltas {
		if prev.hidden.get(d.Old) {
			d.Old = nil
		}
		if next.hidden.get(d.New) {
			d.New = nil
		}
		if d.Old != d.New {
			out = append(out, d)
		}
	}
	return out
}

// listInForce lists the services that are in force.
func (c *catalogs) listInForce(prev *catalogs, merged []*Service, deltas []Delta[*Service]) []Delta[*Service] {
	if c.hidden.size == 0 {
		c.inForce = merged
		return deltas
	}
	list, ok := patch(prev.inForce, deltas, compareServiceKeys)
	if !ok || len(list) != len(merged)-c.hidden.size { // not unless a list is out of order
		list = slices.DeleteFunc(slices.Clone(merged), c.hidden.get)
	}
	c.inForce = list
	return deltas
}

// shadowed reports whether declared services for its host hide a catalog's service from
// every namespace, and the conflicts to report.
func shadowed(svc *Service, written []*Service, defaults []string) (bool, []Conflict) {
	var conflicts []Conflict
	theirs := audience(svc, defaults)
	left, met := theirs, false
	for _, w := range written {
		to := audience(w, defaults)
		if !to.intersects(theirs) {
			continue
		}
		left, met = left.without(to), true
		if merges(w, svc) {
			continue
		}
		reason := fmt.Sprintf("the host %q belongs to %s: that object is in force, and the catalog's service is not; "+
			"a ServiceEntry can select its instances by the label %s", svc.Hostname, w.Key, LabelConsulService)
		if !to.all {
			reason = fmt.Sprintf("the host %q belongs to %s in the namespaces %s: that object is in force there, and the catalog's service elsewhere",
				svc.Hostname, w.Key, strings.Join(to.namespaces, ", "))
		}
		conflicts = append(conflicts, Conflict{Key: svc.Key, Host: svc.Hostname, Kept: w.Origin, Dropped: svc.Origin, Reason: reason})
	}
	return met && left.empty(), conflicts
}

// merges reports whether a declared service selects the instances of a catalog's service.
// Then it replaces that service intentionally.
func merges(written, svc *Service) bool {
	return written.Namespace == svc.Namespace && written.Selector[LabelConsulService] == svc.Selector[LabelConsulService]
}

// namespaceSet is a set of namespaces.
type namespaceSet struct {
	all        bool
	namespaces []string // sorted; of no meaning where all see it
}

// audience is the namespaces that see a service.
func audience(svc *Service, defaults []string) namespaceSet {
	return audienceOf(svc.ExportTo, defaults, svc.Namespace)
}

// audienceOf is the namespaces that see an object of namespace own.
func audienceOf(exports Exports, defaults []string, own string) namespaceSet {
	list := []string(exports)
	if len(list) == 0 {
		if len(defaults) == 0 {
			return namespaceSet{all: true}
		}
		list = slices.Clone(defaults)
		for i, ns := range list {
			if ns == "." {
				list[i] = own
			}
		}
		slices.Sort(list)
		list = slices.Compact(list)
	}
	switch {
	case slices.Contains(list, "*"):
		return namespaceSet{all: true}
	case slices.Contains(list, "~"):
		return namespaceSet{}
	default:
		return namespaceSet{namespaces: list}
	}
}

func (g namespaceSet) empty() bool { return !g.all && len(g.namespaces) == 0 }

func (g namespaceSet) intersects(o namespaceSet) bool {
	switch {
	case g.empty() || o.empty():
		return false
	case g.all || o.all:
		return true
	default:
		return slices.ContainsFunc(g.namespaces, func(ns string) bool { return slices.Contains(o.namespaces, ns) })
	}
}

// without removes the namespaces of another set. From all namespaces, only all can be
// removed.
func (g namespaceSet) without(o namespaceSet) namespaceSet {
	switch {
	case o.all:
		return namespaceSet{}
	case g.all:
		return g
	default:
		return namespaceSet{namespaces: slices.DeleteFunc(slices.Clone(g.namespaces), func(ns string) bool { return slices.Contains(o.namespaces, ns) })}
	}
}

// Shadowed reports whether a namespace does not see a catalog's service because it sees a
// declared one for the host.
func (s *Snapshot) Shadowed(svc *Service, namespace string) bool {
	if !svc.Catalog {
		return false
	}
	for _, w := range s.ServicesOn(svc.Hostname) {
		if w.Catalog {
			return false // those that are written down come first
		}
		if exportedTo(w.ExportTo, s.MeshConfig.Spec.GetDefaultServiceExportTo(), w.Namespace, namespace) {
			return true
		}
	}
	return false
}

// disagreement describes the differences between two objects of one Key from two sources.
// There are usually none between the services of two datacenters, which are merged.
func disagreement[T object](kept, dropped []T) (string, bool) {
	a, ok := any(kept).([]*Service)
	if !ok || !a[0].Catalog {
		return "", true
	}
	b, ok := any(dropped).([]*Service)
	if !ok || !b[0].Catalog {
		return "", true
	}
	if slices.EqualFunc(a, b, func(x, y *Service) bool { return sameHash(&x.Meta, &y.Meta) }) {
		return "", false
	}
	return fmt.Sprintf("two catalogs disagree on this service: %s; the first one is in force, with the instances of both", differences(a, b)), true
}

// differences describes the differences between two services.
func differences(a, b []*Service) string {
	if len(a) != len(b) {
		return fmt.Sprintf("%d hosts in one, %d in the other", len(a), len(b))
	}
	var out []string
	for i, x := range a {
		y := b[i]
		for _, d := range []struct {
			what        string
			here, there any
		}{
			{"host", x.Hostname, y.Hostname},
			{"ports", describePorts(x.Ports), describePorts(y.Ports)},
			{"resolution", x.Resolution.String(), y.Resolution.String()},
			{"external", x.External, y.External},
			{"addresses", strings.Join(x.Addresses, " "), strings.Join(y.Addresses, " ")},
			{"exported to", strings.Join(x.ExportTo, " "), strings.Join(y.ExportTo, " ")},
		} {
			if line := fmt.Sprintf("%s %v and %v", d.what, d.here, d.there); d.here != d.there && !slices.Contains(out, line) {
				out = append(out, line)
			}
		}
	}
	if len(out) == 0 {
		return "labels, annotations or another field"
	}
	return strings.Join(out, ", ")
}

func describePorts(ports []Port) string {
	words := make([]string, len(ports))
	for i, p := range ports {
		words[i] = fmt.Sprintf("%s/%d/%s", p.Name, p.Number, cmp.Or(p.Protocol, "-"))
	}
	return strings.Join(words, "+")
}
