package mesh

import (
	"slices"
	"strings"
)

// LostNames are short forms of NAME.NAMESPACE.svc.DOMAIN that a service of a bound source does not have. A service of
// an unbound source has all, as in Istio.
type LostNames uint8

const (
	// LostName is NAME, for clients in the namespace.
	LostName LostNames = 1 << iota
	// LostNamespaceName is NAME.NAMESPACE and NAME.NAMESPACE.svc.
	LostNamespaceName
)

// ShortNames are the short forms of the service's host for clients in a DNS domain, NAMESPACE.svc.DOMAIN: all places
// that answer by one ask here.
func (s *Service) ShortNames(domain string) []string {
	ns, suffix, ok := strings.Cut(domain, ".svc.")
	if !ok {
		return nil
	}
	head, ok := strings.CutSuffix(string(s.Hostname), ".svc."+suffix)
	if !ok {
		return nil
	}
	name, in, ok := strings.Cut(head, ".")
	if !ok {
		return nil
	}
	var out []string
	if in == ns && s.LostNames&LostName == 0 {
		out = append(out, name)
	}
	switch {
	case s.LostNames&LostNamespaceName != 0:
	case in == ns:
		out = append(out, head+".svc", head)
	default:
		out = append(out, head, head+".svc")
	}
	return out
}

// LacksShortNames reports whether clients in a DNS domain have not all short forms of the service's host.
func (s *Service) LacksShortNames(domain string) bool { return len(s.LostShortNames(domain)) > 0 }

// LostShortNames are the short forms that clients in a DNS domain do not have.
func (s *Service) LostShortNames(domain string) []string {
	if s.LostNames == 0 {
		return nil
	}
	all := *s
	all.LostNames = 0
	has := s.ShortNames(domain)
	return slices.DeleteFunc(all.ShortNames(domain), func(name string) bool { return slices.Contains(has, name) })
}

// shortForms are the short forms of a host for clients anywhere, in the DNS domain of the host: NAME, and those with
// the namespace. ok is false if it has none.
func shortForms(h Hostname) (name, namespace Hostname, ok bool) {
	head, domain, is := strings.Cut(string(h.canonical()), ".svc.")
	first, _, dotted := strings.Cut(head, ".")
	if !is || !dotted || domain == "" || first == "" || strings.HasPrefix(head, "*") {
		return "", "", false
	}
	return Hostname(first), Hostname(head), true
}

// namespaceLabel reports whether a host has labels before .svc.DOMAIN of which the last may be a namespace.
func namespaceLabel(h Hostname) bool {
	head, domain, is := strings.Cut(string(h.canonical()), ".svc.")
	return is && domain != "" && strings.Contains(head, ".")
}

// ownShortForms are those that a service of a bound source may have: NAME has no dot, and the namespace is its own.
func ownShortForms(svc *Service) []Hostname {
	name, namespace, ok := shortForms(svc.Hostname)
	if !ok || namespace != name+Hostname("."+svc.Namespace) {
		return nil
	}
	return []Hostname{name, namespace, namespace + ".svc"}
}

// lostNames are the short forms that a bound source's service has not: those that an owner by a pattern or a title,
// or a service of an unbound source, has. A wildcard has none: *.NAMESPACE would have all names below, also those of
// others.
func (o *owners) lostNames(source int, svc *Service) LostNames {
	if _, _, ok := shortForms(svc.Hostname); !ok {
		if svc.Hostname.IsWildcard() && namespaceLabel(svc.Hostname) {
			return LostName | LostNamespaceName
		}
		return 0
	}
	forms := ownShortForms(svc)
	if forms == nil {
		return LostName | LostNamespaceName
	}
	var lost LostNames
	if o.ofAnother(source, forms[0]) {
		lost |= LostName
	}
	if o.ofAnother(source, forms[1]) || o.ofAnother(source, forms[2]) {
		lost |= LostNamespaceName
	}
	return lost
}

// ofAnother reports whether a name is another's, without being declared by the source.
func (o *owners) ofAnother(source int, h Hostname) bool {
	if o.pattern(source, h) != nil {
		return true
	}
	b := o.bindings[source]
	if _, who := o.titled(b, h, ""); who != "" && !b.covers(h) {
		return true
	}
	for i := range o.claims {
		if o.bindings[i] != nil {
			continue
		}
		found := false
		note := func(other *Service) bool {
			x := other.Hostname.canonical()
			found = x != "*" && covering(x, h)
			return !found
		}
		if o.claims[i].services.find(h, true, note); !found {
			o.claims[i].private.find(h, true, note)
		}
		if found {
			return true
		}
	}
	return false
}

// withLostNames is a service without some short forms.
func withLostNames(svc *Service, lost LostNames) *Service {
	out := *svc
	out.LostNames = lost
	out.Hash = hashAs(svc.Hash, "lost names "+string(rune('0'+lost)))
	return &out
}

// aliases are the other names by which clients reach a service, if it counts: its short forms, and its addresses.
func (w *restricter) aliases(source int) func(svc *Service) []Hostname {
	return func(svc *Service) []Hostname {
		switch {
		case len(w.serviceHosts(svc)) == 0:
			return nil
		case w.owners.bindings[source] != nil:
			return aliasesOf(svc)
		}
		out := aliasesOf(svc)
		if name, namespace, ok := shortForms(svc.Hostname); ok { // also of another namespace than the object's
			out = append(out, name, namespace, namespace+".svc")
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
}
