package mapping

import (
	"slices"
	"strings"

	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/registry/mesh"
)

// consulService is the service that Consul's own servers register.
const consulService = "consul"

// sanitizeName is a name as a note shows it, bounded.
func sanitizeName(s string) string { return safetext.Sanitize(s, maxText) }

// identify finds the rule of the service, its names, its hosts and its identity;
// false where it is none of the mesh.
func (w *serviceMapping) identify() bool {
	w.consulNamespace, w.partition = orDefault(w.in.Namespace), orDefault(w.in.Partition)
	if strings.Contains(w.in.Service, "/") {
		w.warn(CodeName, "", "the name has a slash, which no name of the mesh may have; register the service under another name")
		return false
	}
	if !w.home() && (!isDNSLabel(w.consulNamespace) || !isDNSLabel(w.partition)) {
		w.warn(CodeName, "", "the namespace or partition of Consul, %s/%s, is no DNS label", sanitizeName(w.partition), sanitizeName(w.consulNamespace))
		return false
	}
	rule, exact := w.m.rules.of(w.fullName())
	w.rule = rule
	if rule.Skip || w.in.Service == consulService && !exact {
		return false
	}
	return w.setName(exact) && w.identity() && w.setHosts()
}

// setName decides what the service is called in the mesh. exact says that its rule
// names it, and so which of several spellings is meant.
func (w *serviceMapping) setName(exact bool) bool {
	name := w.in.Service
	folded := strings.ToLower(name)
	switch {
	case w.rule.Name != "":
		name = w.rule.Name
	case folded == name:
	case !w.rule.FoldCase:
		w.warn(CodeName, "", `the name has capital letters, and %s would have the same host; if no other service may be called that, write a rule for it: %s`,
			sanitize(folded), w.suggest(ruleFoldCase, "true"))
		return false
	case !exact && w.spelledOtherwise():
		w.warn(CodeName, "", "other services have this name with other capital letters; write a rule for the one that is meant: %s", w.suggest(ruleFoldCase, "true"))
		return false
	default:
		name = folded
	}
	if !isDNSLabel(name) {
		w.warn(CodeName, "", `the name is no DNS label (lower case letters, digits and '-', at most %d); register the service under another name, or write a rule: %s`,
			maxLabel, w.suggest(ruleName, "NAME"))
		return false
	}
	if owner, taken := w.m.rules.ownerOf(w.fullName(), name); taken {
		w.warn(CodeName, "", "a rule gives the name %s to the service %s; rename one of them", sanitize(name), sanitize(owner))
		return false
	}
	w.service = name
	w.id = name
	if !w.home() {
		w.id = ServiceID(name, w.consulNamespace, w.partition)
	}
	return true
}

// fullName is the name that rules know the service by.
func (w *serviceMapping) fullName() string {
	return w.partition + "/" + w.consulNamespace + "/" + w.in.Service
}

// spelledOtherwise reports whether there is a service with the same letters.
func (w *serviceMapping) spelledOtherwise() bool {
	for _, e := range w.in.Entries {
		if e != nil && e.Service != nil && e.Service.Service != w.in.Service && e.Service.Kind == "" {
			return true
		}
	}
	return false
}

// ServiceID is the value of mesh.LabelConsulService for a service: its name in
// the mesh, and outside the home namespace and partition those two; empty ones
// are left out.
func ServiceID(name, namespace, partition string) string {
	id := name
	if namespace != "" {
		id += "." + namespace
	}
	if partition != "" {
		id += "." + partition
	}
	return id
}

// suggest is a rule to write for the service. It may be copied into a shell, so it
// has no name that means something there.
func (w *serviceMapping) suggest(key, value string) string {
	name := w.in.Service
	if !isLabelName(name) {
		name = "PATTERN"
	}
	return `"` + name + ":" + key + "=" + value + `"`
}

// setHosts fills the templates of hosts.
func (w *serviceMapping) setHosts() bool {
	if len(w.m.hosts) == 0 {
		host := w.service + ".service"
		if !w.home() {
			host += "." + w.consulNamespace + ".ns." + w.partition + ".ap"
		}
		w.host(host + ".consul")
	}
	for i := range w.m.hosts {
		t := &w.m.hosts[i]
		apart := t.uses(varNamespace) && w.m.namespace.uses(varConsulNamespace) && w.rule.Namespace == ""
		switch {
		case !w.homeNamespace() && !t.uses(varConsulNamespace) && !apart,
			!w.homePartition() && !t.uses(varPartition):
			w.warn(CodeHost, "", "the host template %s does not distinguish %s/%s from other namespaces and partitions of Consul; write {{.ConsulNamespace}} or {{.Partition}} in it",
				sanitize(t.fill(&values{"{{.Service}}", "{{.Namespace}}", "{{.ConsulNamespace}}", "{{.Partition}}"})), sanitizeName(w.partition), sanitizeName(w.consulNamespace))
		default:
			w.host(t.fill(&w.values))
		}
	}
	slices.Sort(w.hosts)
	w.hosts = slices.Compact(w.hosts)
	return true
}

func (w *serviceMapping) host(name string) {
	if !isSubdomain(name) {
		w.warn(CodeHost, "", "%s is no host name, so the service does not have it", sanitize(name))
		return
	}
	w.hosts = append(w.hosts, mesh.Hostname(name))
}

// serviceName is the name of the services' Key. A manifest's has no slash.
func (w *serviceMapping) serviceName() string {
	if w.home() {
		return "consul/" + w.service
	}
	return "consul/" + w.partition + "/" + w.consulNamespace + "/" + w.service
}

// workloadName is the name of an instance's Key.
func (w *serviceMapping) workloadName(x *entry) string {
	var b strings.Builder
	b.WriteString("consul/")
	b.WriteString(escaped(w.in.Datacenter))
	b.WriteByte('/')
	if !w.home() {
		b.WriteString(escaped(w.partition))
		b.WriteByte('/')
	}
	b.WriteString(escaped(x.node.Node))
	b.WriteByte('/')
	if !w.home() {
		b.WriteString(escaped(w.consulNamespace))
		b.WriteByte('/')
	}
	b.WriteString(escaped(x.service.ID))
	return b.String()
}

// path is where people find the service.
func (w *serviceMapping) path() string {
	return "consul://" + escaped(w.in.Datacenter) + "/service/" + escaped(w.in.Service)
}

// escaped makes one part of a path of a name.
func escaped(s string) string {
	if !strings.ContainsAny(s, "/%") && sanitizeName(s) == s {
		return s
	}
	var b strings.Builder
	const hex = "0123456789ABCDEF"
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c == '/' || c == '%' || c >= 0x7f {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
